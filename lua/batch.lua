-- The batch: all keys are read, the requests decided one after the other, and what has changed is
-- written last, because an error half way would not take back what was written.

local steps = {
  [DECIDE] = decide, [GIVE_BACK] = settle, [OWE] = settle, [RESET] = reset, [RENEW] = renew,
  [LEASE] = lease_block,
}

load_keys()

local rows, n = { pack('>c8I7B', nonce, now, ROWS) }, 1
for i = 1, #ops do
  local op = ops[i]
  for _ = 1, op.count do
    n = n + 1
    rows[n] = op.stale and STALE or steps[op.kind](op)
  end
end

for i = 1, #entries do
  local entry = entries[i]
  if entry.settled_until then
    set(entry.name, '1', ceil(entry.settled_until / 1000))
  elseif entry.changed then
    write(entry)
  end
end

return table.concat(rows)
