-- What a call says and in which words: codes, arguments, the time.
--
-- Here begins the script around the algorithms: a batch of requests over the keys of one call. Its
-- files are one text, in which each uses what stands before it. README.md has their order, and
-- says what comes in and what goes out.

local ceil, floor = math.ceil, math.floor
local unpack = unpack or table.unpack

-- Kinds of operations.
local DECIDE, GIVE_BACK, OWE, RESET, RENEW, LEASE = 1, 2, 3, 4, 5, 16
-- What a charge does besides: it enforces, or it is not made.
local ENFORCED, DRY = 1, 2
-- Kinds of rows: the byte with which a row begins.
local STALE, DENIED, ADMITTED, FAULT = '\0', '\1', '\2', '\3'
local RETURNED, CHARGED, REPEATED, LAPSED, FORGOTTEN = '\4', '\5', '\6', '\7', '\8'
local RENEWED, LEASED = '\9', '\16'
-- Why a row is a fault.
local WRONG_TYPE, UNREADABLE = 1, 2

local nonce, injected, forms, operations, requests = unpack(ARGV)

local now
if injected == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(injected)
end
-- The time of the call, and the instant after it, as they are stored.
local this_instant, next_instant = struct.pack('>I7', now), struct.pack('>I7', number.add(now, 1))
