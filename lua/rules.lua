-- The general path starts here. Rules: a header, decoded into an algorithm and its numbers. Stored
-- values and requests both contain headers, which shows whether a key is held under the policy that
-- charges it.

-- Kinds of rows: the first byte of each row.
local STALE, DENIED, ADMITTED, FAULT = '\0', '\1', '\2', '\3'
local RETURNED, CHARGED, REPEATED, LAPSED, FORGOTTEN = '\4', '\5', '\6', '\7', '\8'
local RENEWED, UNMADE, BLOCKED, LEASED = '\9', '\10', '\11', '\16'
-- Kinds of faults.
local WRONG_TYPE, UNREADABLE, ELSEWHERE = 1, 2, 3

-- The time of the call and the following microsecond, in the stored format.
local this_instant, next_instant = pack('>I7', now), pack('>I7', number.add(now, 1))

-- The microsecond after an instant in the stored format.
local function after(instant)
  return pack('>I7', number.add((unpack('>I7', instant)), 1))
end

-- The code for concurrency limits.
local IN_FLIGHT = 10
-- The code for fixed windows over calendar periods. Three instants follow the header of such forms:
-- the start of the first period, the boundary with the second, and the end of the second.
local CALENDAR = 12
-- The codes of penalties: with and without denials as strikes.
local DENIAL_PENALTY, FAILURE_PENALTY = 11, 13

-- Forms with the same code have headers of equal length.
local function header_length(code)
  if code <= 4 or code == IN_FLIGHT or code == CALENDAR then return 13 end
  if code == 8 then return 25 end
  if code == DENIAL_PENALTY or code == FAILURE_PENALTY then return 34 end
  return 18
end

local algorithms = {} -- created on first use, because most calls need only one algorithm
local rules = {} -- by header

local function algorithm_of(code)
  local make = leaky_bucket -- 7 queue, 8 queue with max_wait, 9 meter
  if code == 1 then
    make = fixed_window_counter
  elseif code == CALENDAR then
    make = calendar_window_counter
  elseif code <= 3 then
    make = sliding_window_log -- 2 exact, 3 a thousandth of the window
  elseif code == 4 then
    make = sliding_window_counter
  elseif code <= 6 then
    make = token_bucket -- 5 greedy, 6 interval
  elseif code == IN_FLIGHT then
    make = concurrent_requests
  elseif code == DENIAL_PENALTY or code == FAILURE_PENALTY then
    make = penalty
  end
  local algorithm = algorithms[make]
  if not algorithm then
    algorithm = make()
    algorithms[make] = algorithm
  end
  return algorithm
end

-- The rule that a header encodes, or nil if the header is invalid.
local function rule_of(header)
  local rule = rules[header]
  if rule then return rule end
  local _, code, limit, window, from = struct.unpack('>BBI5I6', header)
  if limit == 0 or window == 0 then return nil end
  -- Force doubles: newer Lua versions also have integers, and their products wrap around.
  limit, window = limit + 0.0, window + 0.0
  local interval = code == 6
  rule = {
    header = header, algorithm = algorithm_of(code), limit = limit, window = window,
    grid = (code == 2 or code == IN_FLIGHT) and 1 or code == 3 and ceil(window / 1000) or false,
    in_flight = code == IN_FLIGHT,
    penalises = code == DENIAL_PENALTY or code == FAILURE_PENALTY,
    counts_denials = code == DENIAL_PENALTY,
    limits_rate = code < IN_FLIGHT or code == CALENDAR,
    block = 0, factor = 1, max_block = 0, forget_after = 0,
    -- A bucket's limit and window are in lowest terms, which defines its scale. Refill in intervals
    -- adds whole tokens and needs no scale.
    interval = interval, unit = interval and 1 or window, rate = limit,
    capacity = 0, full = 0, room = limit, queue = code == 7 or code == 8, max_wait = number.MAX,
    calendar = code == CALENDAR and window or false, start = 0, stop = 0,
  }
  if code >= 5 and code <= 9 then
    rule.capacity = struct.unpack('>I5', header, from)
    rule.full, rule.room = rule.capacity * rule.unit, rule.capacity
    if rule.capacity == 0 or 2 * rule.full > number.MAX + 1 then return nil end
    if code == 8 then rule.max_wait = struct.unpack('>I7', header, from + 5) end
  end
  if rule.penalises then
    rule.block, rule.factor, rule.max_block, rule.forget_after =
      struct.unpack('>I6I3I6I6', header, from)
    if rule.factor == 0 then return nil end
    -- Force doubles here too.
    rule.block, rule.factor = rule.block + 0.0, rule.factor + 0.0
  end
  rules[header] = rule
  return rule
end

local leases = false -- created on first use

local function leasing()
  leases = leases or lease()
  return leases
end
