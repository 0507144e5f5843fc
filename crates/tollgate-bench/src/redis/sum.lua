-- A weighted sliding window log as often published: a member per request, with the cost at the end
-- of the name, and a sum over all members for each decision.
-- KEYS[1]: the log. ARGV: limit, window in microseconds, cost, member name. Returns admitted (1 or
-- 0), remaining.
local limit, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local used = 0
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  used = used + tonumber(string.match(member, ':(%d+)$'))
end
if used + cost > limit then
  return { 0, limit - used }
end
redis.call('ZADD', KEYS[1], now, now .. '-' .. ARGV[4] .. ':' .. cost)
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return { 1, limit - used - cost }
