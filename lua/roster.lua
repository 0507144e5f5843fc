-- Counts the processes that share a namespace. Each process calls this script about once a second
-- with its random number, which has eight bytes. The script returns how many numbers it has seen in
-- the current period or in the period before.
--
-- The value contains the period, how many bytes of numbers it has seen in that period, these
-- numbers, and then the numbers that it has only seen in the period before. So a process writes
-- once a period, and its other calls only read.
local SECONDS, BYTES = 5, 8
local key, number = KEYS[1], ARGV[1]
-- Only tests send a time.
local period = math.floor((ARGV[2] or redis.call('TIME')[1]) / SECONDS)

local seen, before = '', ''
local value = redis.call('GET', key)
if value then
  local latest, length, from = struct.unpack('>I7I4', value)
  local middle, at = from + length, value:find(number, from, true)
  if latest >= period then
    if at and at < middle then return math.floor((#value - from + 1) / BYTES) end
    -- After the clock stepped back, the period continues until the key expires.
    period, seen, before = latest, value:sub(from, middle - 1), value:sub(middle)
  elseif latest == period - 1 then
    before = value:sub(from, middle - 1)
  end
end
seen = seen .. number
local first, last = before:find(number, 1, true)
if first then before = before:sub(1, first - 1) .. before:sub(last + 1) end
local written = struct.pack('>I7I4', period, #seen) .. seen .. before
redis.call('SET', key, written, 'EX', 3 * SECONDS)
return math.floor((#seen + #before) / BYTES)
