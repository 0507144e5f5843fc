-- Leases: how a key counts the blocks of units that replicas may spend without calling the store.
-- Lua port of crates/tollgate-store-tests/src/reference/lease.rs.
--
-- holds: { id, units, last } of each open block, ordered by expiry; and `held`, the units in all
--   open blocks. A key without blocks has no table.

local min, max = math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, add, since = number.MAX, number.add, number.since

-- The maximum number of open blocks per key: Holds::MAX.
local MOST = 64
-- Bytes per block: its id, its units and its last instant.
local HOLD = 20

-- Charges `units` beyond the quota at `at`, under all versions of a rate limit.
local function charge(versions, units, at)
  for i = 1, #versions do
    local rule, state = versions[i].rule, versions[i].state
    if rule.limits_rate then rule.algorithm.owe(rule, state, units, at) end
  end
end

-- Charges the blocks that expired before `now`, each at its last instant, under all versions.
local function lapse(holds, versions, now)
  while holds[1] and holds[1].last < now do
    local hold = table.remove(holds, 1)
    holds.held = holds.held - hold.units
    charge(versions, hold.units, hold.last)
  end
end

-- Decides on `cost` in addition to the open blocks. Changes no state.
local function assess(holds, rule, now, cost, ...)
  local algorithm, first, last = rule.algorithm, holds[1], holds[#holds]
  local kind, left, reset_after, wait, charged_at, refunded =
    algorithm.assess(rule, now, add(cost, holds.held), ...)
  reset_after = max(reset_after, since(last.last, now))
  if kind == ALLOW and cost > 0 then
    return kind, left, reset_after, wait, charged_at, refunded
  end
  local alone, _, _, alone_wait, alone_at, alone_refunded = algorithm.assess(rule, now, cost, ...)
  if kind ~= ALLOW then left = max(left - holds.held, 0) end
  -- A request for zero units never waits, regardless of the remaining units.
  if alone == EXCEED or cost == 0 then
    return alone, left, reset_after, alone_wait, alone_at, alone_refunded
  end
  if kind == EXCEED then
    if alone ~= DENY then alone_wait = 0 end
    kind, wait = DENY, max(since(first.last, now), 1, alone_wait)
  end
  return kind, left, reset_after, wait, 0
end

-- Grants up to `units` for `ttl`, limited to the remaining units, and returns the number and their
-- last instant. Grants none if the key already has a block with this ID, because one holder would
-- then settle the other holder's block.
local function grant(holds, rule, state, now, id, units, ttl)
  local algorithm, left, charged_at, _ = rule.algorithm, 0, 0, nil
  if holds[1] then
    _, left, _, _, charged_at =
      assess(holds, rule, now, 0, algorithm.refresh(rule, state, now))
  else
    _, left, _, _, charged_at = algorithm.assess(rule, now, 0, algorithm.refresh(rule, state, now))
  end
  -- Requests that queue have taken instants after now, so these units are not spent now.
  units = charged_at > now and 0 or min(units, left)
  if units == 0 or #holds >= MOST then return 0, now end
  for place = 1, #holds do
    if holds[place].id == id then return 0, now end
  end
  local last = algorithm.last_instant and algorithm.last_instant(rule, state, now) or MAX
  last = max(min(add(now, ttl), last), now)
  local place = #holds + 1
  while place > 1 and holds[place - 1].last > last do place = place - 1 end
  table.insert(holds, place, { id = id, units = units, last = last })
  holds.held = holds.held + units
  return units, last
end

-- Settles a block by charging the `used` units now, under all versions. Returns whether the key
-- still had the block.
local function settle(holds, versions, now, id, used)
  for place = 1, #holds do
    local hold = holds[place]
    if hold.id == id then
      table.remove(holds, place)
      holds.held = holds.held - hold.units
      used = min(used, hold.units)
      if used > 0 then charge(versions, used, now) end
      return true
    end
  end
  return false
end

-- The instant at which a state will be fresh. Charges all blocks to compute it, so do not use the
-- state afterwards.
local function fresh_at(holds, rule, state)
  for i = 1, #holds do rule.algorithm.owe(rule, state, holds[i].units, holds[i].last) end
  local last = holds[#holds].last
  if rule.algorithm.is_fresh(rule, state, last) then return last end
  return rule.algorithm.fresh_at(rule, state)
end

local function encode(holds)
  local parts = { string.char(#holds) }
  for i = 1, #holds do
    local hold = holds[i]
    parts[i + 1] = hold.id .. struct.pack('>I5I7', hold.units, hold.last)
  end
  return table.concat(parts)
end

-- Reads the blocks, and returns where the state starts. Nil if the bytes are invalid.
local function decode(value, from)
  local count = value:byte(from)
  if not count or count == 0 or count > MOST then return nil end
  local after = from + 1 + count * HOLD
  if #value < after then return nil end
  local holds, before = { held = 0 }, 0
  for i = 1, count do
    local at = from + 1 + (i - 1) * HOLD
    local units, last = struct.unpack('>I5I7', value, at + 8)
    if units == 0 or last < before then return nil end
    before = last
    holds[i] = { id = value:sub(at, at + 7), units = units, last = last }
    holds.held = holds.held + units
  end
  return holds, after
end

return {
  charge = charge,
  lapse = lapse,
  assess = assess,
  grant = grant,
  settle = settle,
  fresh_at = fresh_at,
  encode = encode,
  decode = decode,
}
