-- Corrections of earlier charges. `settle` refunds units or charges more, `renew` restarts a
-- concurrency permit, and `reset` forgets a key. A settled receipt has its own key, so a repeated
-- correction changes no state. Units are only refunded while the state still contains their charge.

-- The rule under which a key is held, unless its state is fresh.
local function held_of(entry)
  local held = entry.rule
  if held and held.algorithm.is_fresh(held, entry.state, now) then return false end
  return held
end

-- Whether a charge can be distinguished from other charges. It cannot if the state expired, was
-- reset, or was carried over to another quota since. Only permits retain their dates under another
-- quota.
local function is_known(op, held)
  local rule = op.rule
  return held and (held == rule or held.in_flight and rule.in_flight)
    and op.charged_at >= struct.unpack('>I7', op.entry.since)
end

-- Corrects a charge. A receipt settles only once.
local function settle(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if now >= number.add(op.charged_at, op.lifetime) then return LAPSED end
  if receipt.exists then return REPEATED end
  receipt.exists, receipt.settled_until, changes = true, number.add(now, op.lifetime), true
  local held = held_of(entry)
  local state, units
  if op.kind == OWE then
    -- Charge the debt under the key's current quota.
    rule = held or rule
    state = state_under(rule, entry)
    units = rule.algorithm.owe(rule, state, op.units, now)
  else
    if not is_known(op, held) then return RETURNED .. struct.pack('>I7', 0) end
    rule, state = held, entry.state
    units = rule.algorithm.give_back(rule, state, op, op.units, now)
  end
  keep(entry, rule, state)
  -- Redis deletes a fresh state, so the rest of this call must not see it either.
  if not entry.holds and rule.algorithm.is_fresh(rule, state, now) then forget(entry) end
  return (op.kind == OWE and CHARGED or RETURNED) .. struct.pack('>I7', units)
end

-- Restarts a permit's time to live.
local function renew(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if receipt.exists then return REPEATED end
  local known = is_known(op, held_of(entry))
  local state = state_under(rule, entry)
  keep(entry, rule, state)
  if known then rule.algorithm.give_back(rule, state, op, op.cost, now) end
  return RENEWED .. struct.pack('>I7', rule.algorithm.renew(rule, state, op.cost, now))
end

-- Resets a key except its open blocks, because a replica may still spend them.
local function reset(op)
  local entry = op.entry
  if entry.fault then return fault_row(entry, op.key) end
  if entry.holds then
    if struct.unpack('>I7', entry.since) <= now then entry.since = next_instant end
    keep(entry, entry.rule, entry.rule.algorithm.fresh(entry.rule))
  else
    forget(entry)
  end
  entry.was_reset = true
  return FORGOTTEN
end
