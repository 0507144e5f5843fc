-- A replica's request about its blocks of units, which it spends without calling Redis. It reports
-- the units spent from finished blocks, and may request another block. Most requests do both, so a
-- block costs one call. `lease.lua` counts a key's blocks.

local function lease_block(op)
  local entry, rule = op.entry, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  local leases = leasing()
  for i = 1, #op do
    local holds, settled = entry.holds, op[i]
    if holds and leases.settle(holds, entry.versions, now, settled.id, settled.used) then
      entry.changed, changes = true, true
      entry.holds = #holds > 0 and holds
    end
  end
  local units, last = 0, now
  if op.units > 0 then
    local holds, state = entry.holds or { held = 0 }, state_under(rule, entry)
    -- Copies of a machine may have equal tags, but no two calls have the same time.
    local id = struct.pack('>I4', now % 4294967296) .. op.tag
    units, last = leases.grant(holds, rule, state, now, id, op.units, op.ttl)
    if units > 0 then
      keep(entry, rule, state)
      entry.holds = holds
    end
  end
  -- Redis deletes fresh states, so the rest of this call must not see them either.
  if entry.changed and entry.versions[1] and is_forgettable(entry) then forget(entry) end
  local state = state_under(rule, entry)
  local _, remaining, reset_after = assess(rule, entry, state, 0, now)
  local retry_after = 0
  if units == 0 then
    local kind, _, _, wait = assess(rule, entry, state, 1, now)
    if kind == DENY then retry_after = wait end
  end
  return LEASED .. struct.pack('>I5I7I5I7I7', units, last - now, remaining, reset_after, retry_after)
end
