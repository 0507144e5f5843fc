-- The end of the general path: read all keys, execute the requests one after the other, write each
-- changed key, and return a row per request. Writes are last because Redis does not undo them if
-- the script fails. If the server has no memory, requests that changed a key get the row UNMADE.

local steps = {
  [DECIDE] = decide, [DECIDE_QUEUED] = decide, [GIVE_BACK] = settle, [OWE] = settle, [RESET] = reset, [RENEW] = renew, [BLOCK] = block,
  [LEASE] = lease_block,
}

load_keys()

-- Rows of requests that changed a key and were not denied. They are wrong if the write fails.
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
      -- A denial without changes also answers the equal requests after it.
      is_last = is_denied and not changes
    end
    rows[n] = row
  end
end

for i = 1, #entries do
  local entry = entries[i]
  if entry.settled_until then
    set(entry.name, '1', entry.settled_until)
  elseif entry.changed then
    write(entry)
  end
  if is_full then break end
end
if is_full then
  for i = 1, #made do rows[made[i]] = UNMADE end
end

return table.concat(rows)
