-- Penalty: a key with `limit` strikes within a window is blocked for a time.
-- Lua port of crates/tollgate-core/src/algorithm/penalty.rs.
--
-- rule: limit (strikes), window (within), block, factor, max_block, forget_after.
-- state: strikes, their instants, oldest first; blocked_until, level, last_seen.
-- view: state, seen, head (the number of expired strikes), level.

local min, max = math.min, math.max
local ALLOW, DENY = outcome.ALLOW, outcome.DENY
local add, since = number.add, number.since

local LAYOUT = '>I7BI7I2'
local HEADER = 17
local ENTRY = 7
-- At this level, a block that grows has reached the maximum, however short the first block was.
local MAX_LEVEL = 63

-- How long a block lasts after `level` earlier blocks.
local function block_length(rule, level)
  local length = rule.block
  for _ = 1, level do
    if rule.factor == 1 or length >= rule.max_block then break end
    length = length * rule.factor
  end
  return min(length, rule.max_block)
end

local function fresh()
  return { strikes = {}, blocked_until = 0, level = 0, last_seen = 0 }
end

local function refresh(rule, state, now)
  local strikes = state.strikes
  local seen = now
  if #strikes > 0 or state.level > 0 then seen = max(now, state.last_seen) end
  local head = 0
  while head < #strikes and add(strikes[head + 1], rule.window) <= seen do head = head + 1 end
  local level = state.level
  if add(state.blocked_until, rule.forget_after) <= seen then level = 0 end
  return state, seen, head, level
end

-- Turns a view into a state, without the expired strikes.
local function settle_down(state, seen, head, level)
  local strikes = {}
  for i = head + 1, #state.strikes do strikes[i - head] = state.strikes[i] end
  local blocked_until = level > 0 and state.blocked_until or 0
  return { strikes = strikes, blocked_until = blocked_until, level = level, last_seen = seen }
end

local function assess(rule, now, cost, state, seen, head, level)
  local blocked = level > 0 and seen < state.blocked_until
  local kind, wait, charged_at = ALLOW, 0, seen
  if blocked and cost > 0 then
    kind, wait, charged_at = DENY, since(state.blocked_until, now), 0
  end
  local count = #state.strikes
  local fresh_at = 0
  if count > head then fresh_at = add(state.strikes[count], rule.window) end
  if level > 0 then fresh_at = max(fresh_at, add(state.blocked_until, rule.forget_after)) end
  local remaining = blocked and 0 or since(rule.limit, count - head)
  return kind, remaining, since(fresh_at, now), wait, charged_at
end

-- A penalty takes no units.
local function charge() end

-- No units were taken, so there are none to refund.
local function give_back()
  return 0
end

local function owe(rule, state, units, now)
  local settled = settle_down(refresh(rule, state, now))
  for field, value in pairs(settled) do state[field] = value end
  local seen, strikes = state.last_seen, state.strikes
  if state.level > 0 and seen < state.blocked_until then return 0 end
  units = min(units, max(since(rule.limit, #strikes), 1))
  for _ = 1, units do strikes[#strikes + 1] = seen end
  if #strikes >= rule.limit then
    state.strikes = {}
    state.blocked_until = add(seen, block_length(rule, state.level))
    state.level = min(state.level + 1, MAX_LEVEL)
  end
  return units
end

local function is_fresh(rule, state, now)
  local _, _, head, level = refresh(rule, state, now)
  return head == #state.strikes and level == 0
end

-- A block without a length (past 2^53 - 1) makes the next one longer, and a block with a length counts
-- as the first without one. A running block never becomes shorter.
local function block(rule, state, length, known_at, now)
  local is_old_news = state.last_seen >= known_at and not is_fresh(rule, state, now)
  local settled = settle_down(refresh(rule, state, now))
  local grown = settled.level
  if length > number.MAX then length, grown = block_length(rule, grown), grown + 1 end
  local blocked_until =
    max(add(settled.last_seen, min(length, rule.max_block)), settled.blocked_until)
  if is_old_news or blocked_until <= now then return nil end
  state.strikes, state.blocked_until = {}, blocked_until
  state.level, state.last_seen = min(max(grown, 1), MAX_LEVEL), settled.last_seen
  return since(blocked_until, now)
end

-- Strikes are not quota units.
local function consumed()
  return 0
end

local function counts_from(state)
  return state.last_seen
end

-- Quota units are not strikes either.
local function resume(_, _, at)
  return { strikes = {}, blocked_until = 0, level = 0, last_seen = at }
end

-- The strikes, the block and its level are retained.
local function convert(_, from, state)
  return settle_down(refresh(from, state, state.last_seen))
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  local count, at = #state.strikes, 0
  if count > 0 then at = add(state.strikes[count], rule.window) end
  if state.level > 0 then at = max(at, add(state.blocked_until, rule.forget_after)) end
  return at
end

local function encode(front, state)
  local parts = {
    front, struct.pack(LAYOUT, state.blocked_until, state.level, state.last_seen, #state.strikes),
  }
  for i, at in ipairs(state.strikes) do parts[i + 2] = struct.pack('>I7', at) end
  return table.concat(parts)
end

local function decode(_, value, from)
  if #value < from + HEADER - 1 then return nil end
  local blocked_until, level, last_seen, count = struct.unpack(LAYOUT, value, from)
  local first = from + HEADER
  if level > MAX_LEVEL or #value ~= first + count * ENTRY - 1 then return nil end
  local strikes = {}
  for i = 1, count do
    strikes[i] = (struct.unpack('>I7', value, first + (i - 1) * ENTRY))
  end
  return { strikes = strikes, blocked_until = blocked_until, level = level, last_seen = last_seen }
end
