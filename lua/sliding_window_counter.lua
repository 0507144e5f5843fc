-- Sliding window counter: two counts that approximate a sliding window.
-- Lua port of crates/tollgate-core/src/algorithm/sliding_window_counter.rs.
--
-- rule: limit, window.  state: index, previous, current.
-- view: index, previous, current, elapsed.

local floor, min, max = math.floor, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, add, since = number.MAX, number.add, number.since
local mul_div_ceil, mul_div_floor = number.mul_div_ceil, number.mul_div_floor

-- The units from the previous window that still count.
local function weighted(rule, previous, elapsed)
  if previous == 0 then return 0 end
  return mul_div_ceil(previous, rule.window - elapsed, rule.window)
end

-- The start of window number `index`.
local function start(rule, index)
  return min(index * rule.window, MAX)
end

-- The time after a window's start at which the `previous` window's units weigh at most `room`.
local function until_weight(rule, previous, room)
  if previous <= room then return 0 end
  return rule.window - mul_div_floor(room, rule.window, previous)
end

-- The first instant at which `cost` fits. This is in the current window if only the previous
-- window's share is in the way; otherwise it is when the current count has aged enough.
local function fits_at(rule, cost, index, previous, current)
  local room = rule.limit - cost
  if current <= room then
    return add(start(rule, index), until_weight(rule, previous, room - current))
  end
  return add(start(rule, index + 1), until_weight(rule, current, room))
end

local function decide(rule, now, kind, wait, charged_at, used, index, previous, current)
  local reset_after = 0
  if current > 0 then
    reset_after = since(start(rule, index + 2), now)
  elseif previous > 0 then
    reset_after = since(start(rule, index + 1), now)
  end
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function fresh()
  return { index = 0, previous = 0, current = 0 }
end

local function refresh(rule, state, now)
  local index, previous, current = floor(now / rule.window), 0, 0
  local windows = since(index, state.index)
  if windows == 0 and (state.previous > 0 or state.current > 0) then
    index, previous, current = state.index, state.previous, state.current
  elseif windows == 1 then
    previous = state.current
  end
  return index, previous, current, since(now, start(rule, index))
end

local function assess(rule, now, cost, index, previous, current, elapsed)
  local used = current + weighted(rule, previous, elapsed)
  if cost > rule.limit then
    return decide(rule, now, EXCEED, 0, 0, used, index, previous, current)
  end
  if cost == 0 or used + cost <= rule.limit then
    local charged_at = max(now, start(rule, index))
    return decide(rule, now, ALLOW, 0, charged_at, used + cost, index, previous, current + cost)
  end
  local retry_after = since(fits_at(rule, cost, index, previous, current), now)
  return decide(rule, now, DENY, retry_after, 0, used, index, previous, current)
end

local function charge(rule, state, now, cost)
  local index, previous, current = refresh(rule, state, now)
  state.index, state.previous, state.current = index, previous, current + cost
end

local function give_back(rule, state, charged, units, now)
  state.index, state.previous, state.current = refresh(rule, state, now)
  local index = floor(charged.charged_at / rule.window)
  if index == state.index then
    units = min(units, state.current)
    state.current = state.current - units
  elseif index + 1 == state.index then
    units = min(units, state.previous)
    state.previous = state.previous - units
  else
    return 0
  end
  return units
end

local function owe(rule, state, units, now)
  local index, previous, current, elapsed = refresh(rule, state, now)
  local used = current + weighted(rule, previous, elapsed)
  units = min(units, since(2 * rule.limit, used))
  state.index, state.previous, state.current = index, previous, current + units
  return units
end

local function consumed(rule, state, now)
  local _, previous, current, elapsed = refresh(rule, state, now)
  return current + weighted(rule, previous, elapsed)
end

local function resume(rule, units, now)
  return { index = floor(now / rule.window), previous = 0, current = units }
end

local function convert(rule, from, state, now)
  if from.window == rule.window then
    return { index = state.index, previous = state.previous, current = state.current }
  end
  -- The clock may have stepped back to before the state's window.
  local seen = max(now, start(from, state.index))
  return resume(rule, consumed(from, state, now), seen)
end

local function is_fresh(rule, state, now)
  local _, previous, current = refresh(rule, state, now)
  return previous == 0 and current == 0
end

-- Units charged later would count in the next window.
local function last_instant(rule, state, now)
  local index = refresh(rule, state, now)
  return min((index + 1) * rule.window - 1, MAX)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return start(rule, state.index + (state.current > 0 and 2 or 1))
end

local function encode(front, state)
  return front .. struct.pack('>I7I6I6', state.index, state.previous, state.current)
end

local function decode(_, value, from)
  if #value ~= from + 18 then return nil end
  local index, previous, current = struct.unpack('>I7I6I6', value, from)
  return { index = index, previous = previous, current = current }
end
