-- Reads the overrides of a namespace, or replaces them. Each process calls this script once a second
-- with the version that it knows, which is a microsecond in 16 digits, or zeros if there is no value.
-- The script returns the time, and the value only if its version is another one.
--
-- A call with a list replaces the value if the caller knows its version, and returns the new version
-- and a 1. The value expires with its last override.
local key, known, list, ends_at = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local version = redis.call('GETRANGE', key, 0, 15)
if version == '' then version = '0000000000000000' end
if version ~= known then return {time[1], time[2], redis.call('GET', key) or ''} end
if not list then return {time[1], time[2]} end
if list == '' then
  redis.call('DEL', key)
  return {time[1], time[2], '0000000000000000', 1}
end
-- Later than each earlier version, also if the clock stepped back.
local now = time[1] * 1000000 + time[2]
version = string.format('%016.0f', math.max(now, tonumber(version) + 1))
redis.call('SET', key, version .. list)
redis.call('PEXPIREAT', key, ends_at)
return {time[1], time[2], version, 1}
