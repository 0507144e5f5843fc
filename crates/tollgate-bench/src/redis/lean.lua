-- A token bucket that a team would write for itself: one key, one request.
-- KEYS[1]: the bucket. ARGV: capacity, units per second, cost. Returns admitted (1 or 0) and
-- remaining.
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(state[1]) or capacity, tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - at) * rate / 1000000)
local admitted = tokens >= cost
if admitted then
  tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000))
return { admitted and 1 or 0, math.floor(tokens) }
