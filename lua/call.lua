-- The call: its arguments, the time, and the codes of which requests and replies are made.
-- README.md has the layouts, and the order of the files in the script: each file uses names that the
-- files before it define.

local spread = unpack or table.unpack
local call, pcall, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

-- Kinds of requests.
local DECIDE, GIVE_BACK, OWE, RESET, RENEW, LEASE = 1, 2, 3, 4, 5, 16
-- What a charge does besides: it enforces, or it is not made.
local ENFORCED, DRY = 1, 2
-- Kinds of replies: the call came too late and did nothing; states; rows; states of a call that
-- wrote nothing, as the memory is full.
local LATE, STATES, ROWS, UNWRITTEN = 0, 1, 2, 3

-- KEYS have to share a slot of a Cluster. So a call for several slots brings its keys as arguments.
local KEYS, is_cross_slot = KEYS, #KEYS == 0
if is_cross_slot then
  KEYS = {}
  for i = 5, #ARGV do KEYS[i - 4] = ARGV[i] end
end

local forms, requests, injected = ARGV[2], ARGV[3], ARGV[4]
local nonce, deadline, is_plain = unpack('>c8I7B', ARGV[1])
local now
if injected and injected ~= '' then
  now = tonumber(injected)
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

if deadline > 0 and now > deadline then return pack('>c8I7B', nonce, now, LATE) end
