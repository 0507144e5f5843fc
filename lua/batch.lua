-- The batch: all keys are read, the requests decided one after the other, and what has changed is
-- written last, because an error half way would not take back what was written.

local steps = {
  [DECIDE] = decide, [GIVE_BACK] = settle, [OWE] = settle, [RESET] = reset, [RENEW] = renew,
  [LEASE] = lease_block,
}

load_keys()

-- Of requests that are not denied, the number of each row that is not true unless it is written.
local rows, n, made = { pack('>c8I7B', nonce, now, ROWS) }, 1, {}
for i = 1, #ops do
  local op = ops[i]
  local row, is_last = STALE, op.stale
  for _ = 1, op.count do
    n = n + 1
    if not is_last then
      changes = false
      row = steps[op.kind](op)
      local is_denied = row:sub(1, 1) == DENIED
      if changes and not is_denied then made[#made + 1] = n end
      -- A denial that changes nothing is the answer to the equal requests after it.
      is_last = is_denied and not changes
    end
    rows[n] = row
  end
end

local function takes_memory()
  for i = 1, #entries do
    local entry = entries[i]
    if entry.settled_until or entry.changed and entry.rule then return true end
  end
  return false
end

if #made > 0 and takes_memory() then
  -- Where memory is full, Redis refuses the first write of a script. This one changes nothing.
  local done = redis.pcall('SETRANGE', KEYS[1], 0, '')
  if type(done) == 'table' and done.err and done.err:find('OOM', 1, true) then
    for i = 1, #made do rows[made[i]] = UNMADE end
    return table.concat(rows)
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
