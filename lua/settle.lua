-- Corrections of earlier charges. `settle` refunds units or charges more, `renew` restarts a
-- concurrency permit, `reset` forgets a key, and `block` blocks it. A settled receipt has its own key, so a repeated
-- correction changes no state. Units are only refunded while the state still contains their charge.

-- Whether a version can tell apart a charge. It cannot if the charge was made before the version,
-- or was reset since. If the version started from another one's state, that state may contain other
-- versions' charges of the same microsecond.
local function identifies(version, op, from_start)
  local since = struct.unpack('>I7', version.since)
  return op.charged_at > since or from_start and op.charged_at == since
end

-- Charges a debt under the key's current quota: the receipt's, if it is still used.
local function owe(op)
  local entry, rule = op.entry, op.rule
  local version = version_of(entry, rule) or source_of(entry, rule)
  if version then rule = version.rule end
  local state = state_under(rule, entry)
  keep(entry, rule, state)
  local units = rule.algorithm.owe(rule, state, op.units, now)
  if count_elsewhere(entry, rule, op.units, now) then units = op.units end
  return CHARGED .. struct.pack('>I7', units)
end

-- Refunds units under each version that can identify the charge. Other versions than the receipt's
-- do not know their level after the charge.
local function give_back(op)
  local entry, refunded = op.entry, 0
  -- Nothing counts any more, so the key can expire by itself.
  if is_forgettable(entry) then return RETURNED .. struct.pack('>I7', 0) end
  local own = version_of(entry, op.rule)
  local elsewhere = {
    cost = op.cost, charged_at = op.charged_at, leaves_at = op.charged_at,
    resets_at = op.charged_at, refunded = 0,
  }
  local is_oldest = true
  for _, version in ipairs(entry.versions) do
    local rule, state = version.rule, version.state
    if counts_with(rule, op.rule) then
      if identifies(version, op, version == own or is_oldest) then
        changes, entry.changed = true, true
        local charged = version == own and op or elsewhere
        local units = rule.algorithm.give_back(rule, state, charged, op.units, now)
        refunded = max(refunded, units)
        if refunds.restart(state) then version.since = next_instant end
      end
      is_oldest = false
    end
  end
  -- Redis deletes fresh states, so the rest of this call must not see them either.
  if entry.changed and is_forgettable(entry) then forget(entry) end
  return RETURNED .. struct.pack('>I7', refunded)
end

-- Corrects a charge. A receipt settles only once.
local function settle(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if now >= number.add(op.charged_at, op.lifetime) then return LAPSED end
  if receipt.exists then return REPEATED end
  -- A queued charge counts from later than now, and so does its receipt.
  local settled_until = number.add(max(now, op.charged_at), op.lifetime)
  receipt.exists, receipt.settled_until, changes = true, settled_until, true
  if op.kind == OWE then return owe(op) end
  return give_back(op)
end

-- Restarts a permit's time to live.
local function renew(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if receipt.exists then return REPEATED end
  local version = version_of(entry, rule)
  local is_known = version and not is_fresh(version) and identifies(version, op, true)
  local state = state_under(rule, entry)
  keep(entry, rule, state)
  if is_known then rule.algorithm.give_back(rule, state, op, op.cost, now) end
  return RENEWED .. struct.pack('>I7', rule.algorithm.renew(rule, state, op.cost, now))
end

-- Blocks a key under all versions of a penalty, unless that is old news.
local function block(op)
  local entry, rule = op.entry, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  local state, copy = state_under(rule, entry), {}
  for field, value in pairs(state) do copy[field] = value end
  if not rule.algorithm.block(rule, copy, op.length, op.known_at, now) then
    return BLOCKED .. struct.pack('>I7', 0)
  end
  keep(entry, rule, state)
  local length = rule.algorithm.block(rule, state, op.length, op.known_at, now)
  for _, version in ipairs(entry.versions) do
    local other = version.rule
    if other ~= rule and counts_with(other, rule) then
      other.algorithm.block(other, version.state, op.length, op.known_at, now)
    end
  end
  return BLOCKED .. struct.pack('>I7', length)
end

-- Resets a key except its open blocks, because a replica may still spend them.
local function reset(op)
  local entry = op.entry
  if entry.fault then return fault_row(entry, op.key) end
  local first
  for _, version in ipairs(entry.versions) do
    if not first and version.rule.limits_rate then first = version end
  end
  if entry.holds and first then
    first.state = first.rule.algorithm.fresh(first.rule)
    first.since = later(first.since, next_instant)
    entry.versions, entry.changed, changes = { first }, true, true
  else
    forget(entry)
  end
  entry.was_reset = true
  return FORGOTTEN
end
