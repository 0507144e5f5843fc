-- Sliding window counter: two counts that approximate a sliding window.
-- Lua port of crates/tollgate-core/src/algorithm/sliding_window_counter.rs.
--
-- rule: limit, window.  state: at, previous, current.
-- view: start, previous, current, elapsed.

local floor, min, max = math.floor, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, add, since = number.MAX, number.add, number.since
local mul_div_ceil, mul_div_floor = number.mul_div_ceil, number.mul_div_floor

-- The units from the previous window that still count.
local function weighted(rule, previous, elapsed)
  if previous == 0 then return 0 end
  return mul_div_ceil(previous, rule.window - elapsed, rule.window)
end

-- The start of the window that contains `instant`.
local function start_of(rule, instant)
  return floor(instant / rule.window) * rule.window
end

-- The start of the window that is this number of windows after the window at `start`.
local function later(rule, start, windows)
  return add(start, windows * rule.window)
end

-- The time after a window's start at which the `previous` window's units weigh at most `room`.
local function until_weight(rule, previous, room)
  if previous <= room then return 0 end
  return rule.window - mul_div_floor(room, rule.window, previous)
end

-- The first instant at which `cost` fits. This is in the current window if only the previous
-- window's share is in the way; otherwise it is when the current count has aged enough.
local function fits_at(rule, cost, start, previous, current)
  local room = rule.limit - cost
  if current <= room then return add(start, until_weight(rule, previous, room - current)) end
  return add(later(rule, start, 1), until_weight(rule, current, room))
end

local function decide(rule, now, kind, wait, charged_at, used, start, previous, current, elapsed)
  local reset_after = since(start + elapsed, now)
  if current > 0 then
    reset_after = since(later(rule, start, 2), now)
  elseif previous > 0 then
    reset_after = since(later(rule, start, 1), now)
  end
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function fresh()
  return { at = 0, previous = 0, current = 0 }
end

local function refresh(rule, state, now)
  local at, previous, current = state.at, state.previous, state.current
  -- The last charge is later if its request queued, or if the clock has stepped back.
  local seen = max(now, at)
  local start = start_of(rule, seen)
  if at >= start then return start, previous, current, seen - start end
  local is_previous = start - at <= rule.window
  return start, is_previous and current or 0, 0, seen - start
end

local function assess(rule, now, cost, start, previous, current, elapsed)
  local used = current + weighted(rule, previous, elapsed)
  if cost > rule.limit then
    return decide(rule, now, EXCEED, 0, 0, used, start, previous, current, elapsed)
  end
  if cost == 0 or used + cost <= rule.limit then
    local charged_at = start + elapsed
    return decide(rule, now, ALLOW, 0, charged_at, used + cost, start, previous, current + cost,
      elapsed)
  end
  local retry_after = since(fits_at(rule, cost, start, previous, current), now)
  return decide(rule, now, DENY, retry_after, 0, used, start, previous, current, elapsed)
end

-- Charges `units` more to a state with these counts.
local function add_units(state, previous, current, units, seen)
  state.at, state.previous, state.current = seen, previous, current + units
end

local function charge(rule, state, now, cost)
  local start, previous, current, elapsed = refresh(rule, state, now)
  add_units(state, previous, current, cost, start + elapsed)
end

-- Corrects the counts as of the last charge, so `at` does not change.
local function give_back(rule, state, charged, units, now)
  local charged_in, last = start_of(rule, charged.charged_at), start_of(rule, state.at)
  if later(rule, charged_in, 2) <= now then
    return 0
  elseif charged_in == last then
    units = min(units, state.current)
    state.current = state.current - units
  elseif later(rule, charged_in, 1) == last then
    units = min(units, state.previous)
    state.previous = state.previous - units
  else
    return 0
  end
  return units
end

local function owe(rule, state, units, now)
  local start, previous, current, elapsed = refresh(rule, state, now)
  local used = current + weighted(rule, previous, elapsed)
  units = min(units, since(2 * rule.limit, used))
  add_units(state, previous, current, units, start + elapsed)
  return units
end

local function consumed(rule, state, now)
  local _, previous, current, elapsed = refresh(rule, state, now)
  return current + weighted(rule, previous, elapsed)
end

local function counts_from(state)
  return state.at
end

local function resume(_, units, at)
  return { at = at, previous = 0, current = units }
end

local function convert(rule, from, state)
  if from.window == rule.window then
    return { at = state.at, previous = state.previous, current = state.current }
  end
  return resume(rule, consumed(from, state, state.at), state.at)
end

local function is_fresh(rule, state, now)
  local _, previous, current = refresh(rule, state, now)
  return state.at <= now and previous + current == 0
end

-- Units charged later would count in the next window.
local function last_instant(rule, state, now)
  local start = refresh(rule, state, now)
  return min(start + rule.window - 1, MAX)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  if state.previous + state.current == 0 then return state.at end
  return later(rule, start_of(rule, state.at), state.current > 0 and 2 or 1)
end

local function encode(front, state)
  return front .. struct.pack('>I7I6I6', state.at, state.previous, state.current)
end

-- Earlier versions stored the window's number.
local function decode(rule, value, from, _, is_old)
  if #value ~= from + 18 then return nil end
  local at, previous, current = struct.unpack('>I7I6I6', value, from)
  if is_old then at = at * rule.window end
  return { at = min(at, MAX), previous = previous, current = current }
end
