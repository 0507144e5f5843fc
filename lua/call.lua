-- The call: its arguments, the time, and the codes in requests and replies. README.md describes the
-- layouts and the order of the files in the script. Each file uses names from the files before it.

local spread = unpack or table.unpack
local call, pcall, pack, unpack = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format = string.format

-- Kinds of requests.
local DECIDE, GIVE_BACK, OWE, RESET, RENEW, DECIDE_QUEUED, BLOCK, LEASE = 1, 2, 3, 4, 5, 6, 7, 16
-- Flags for a charge: it enforces its policy, or it is a dry run.
local ENFORCED, DRY = 1, 2
-- A key expires in the second that starts this many seconds after the second in which its state
-- becomes fresh. So its state remains for at least a second, and Redis' clock can step back by that
-- much.
local SLACK = 2
-- Kinds of replies: the deadline had passed and the call did nothing; states; rows; states that
-- were not written because the memory is full.
local LATE, STATES, ROWS, UNWRITTEN = 0, 1, 2, 3

-- KEYS must share a Cluster slot, so a call for several slots sends its keys as arguments.
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
