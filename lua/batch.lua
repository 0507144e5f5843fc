-- The batch: all keys are read, the requests decided one after the other, and what has changed is
-- written last, because an error half way would not take back what was written.

local steps = {
  [DECIDE] = decide, [GIVE_BACK] = settle, [OWE] = settle, [RESET] = reset, [RENEW] = renew,
  [LEASE] = lease_block,
}

load_keys()

local rows, from, n = { nonce, this_instant }, 1, 2
while from <= #requests do
  local index, deadline
  index, deadline, from = struct.unpack('>I2I7', requests, from)
  n = n + 1
  local op = ops[index]
  if deadline > 0 and now > deadline or op.stale then
    rows[n] = STALE
  else
    rows[n] = steps[op.kind](op)
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
