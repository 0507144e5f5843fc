-- Operations: the decoded requests, with their keys and rules. Equal requests are one operation
-- with a count. The call contains each policy's form (a header, and for a calendar its periods) one
-- time, and requests name it by its offset. README.md describes the bytes.

-- Rules by their form's offset.
local rule_at = {}
do
  local from = 1
  while from <= #forms do
    local length = header_length(forms:byte(from + 1))
    local rule = rule_of(forms:sub(from, from + length - 1))
    rule_at[from - 1] = rule
    from = from + length
    if rule.calendar then
      local start, boundary, stop
      start, boundary, stop, from = struct.unpack('>I7I7I7', forms, from)
      if now < boundary then stop = boundary else start = boundary end
      rule.start, rule.stop = start, stop
    end
  end
end

-- Whether now is outside the period that the caller sent with the form.
local function is_outside_periods(rule)
  return rule.calendar and (now < rule.start or now >= rule.stop)
end

local function named(key, form)
  local entry, rule = entries[key], rule_at[form]
  if rule.grid then entry.first_read = rule.algorithm.FIRST_READ end
  return entry, rule
end

local ops = {}
do
  local from, n = 1, 0
  while from <= #requests do
    local op = { kind = 0, stale = false, count = 1 }
    op.kind, op.count, from = struct.unpack('>BI2', requests, from)
    if op.kind == DECIDE or op.kind == DECIDE_QUEUED then
      local charges
      charges, from = struct.unpack('>B', requests, from)
      for i = 1, charges do
        local key, form, flags, cost
        local queue, headroom = 0, 0
        key, form, flags, cost, from = struct.unpack('>I2I2BI7', requests, from)
        if op.kind == DECIDE_QUEUED then
          queue, headroom, from = struct.unpack('>I7I7', requests, from)
          -- A cost of zero is always allowed.
          if cost == 0 then queue = 0 end
        end
        local entry, rule = named(key, form)
        op.stale = op.stale or is_outside_periods(rule)
        op[i] = {
          -- How long the charge may queue, plus one. Zero if it does not queue.
          queue = queue, headroom = headroom,
          key = key, entry = entry, rule = rule, enforce = flags % 4 == ENFORCED,
          dry = flags % 4 == DRY, subject = floor(flags / 4), cost = cost, state = false,
          outcome = 0, remaining = 0, reset_after = 0, wait = 0, charged_at = 0, refunded = 0,
        }
      end
    elseif op.kind == RESET then
      op.key, from = struct.unpack('>I2', requests, from)
      op.entry = entries[op.key]
    elseif op.kind == BLOCK then
      local form
      op.key, form, op.length, op.known_at, from = struct.unpack('>I2I2I7I7', requests, from)
      op.entry, op.rule = named(op.key, form)
    elseif op.kind == LEASE then
      local form, count
      op.key, form, op.units, op.ttl, from = struct.unpack('>I2I2I5I7', requests, from)
      op.entry, op.rule = named(op.key, form)
      op.stale = is_outside_periods(op.rule)
      op.tag, from = requests:sub(from, from + 3), from + 4
      count, from = struct.unpack('>B', requests, from)
      for i = 1, count do
        local id = requests:sub(from, from + 7)
        local used
        used, from = struct.unpack('>I5', requests, from + 8)
        op[i] = { id = id, used = used }
      end
    else
      local form, receipt
      op.key, form, receipt, op.units, op.cost, op.charged_at, op.leaves_at, op.resets_at,
        op.refunded, op.lifetime, from =
        struct.unpack('>I2I2I2I7I7I7I7I7I7I7', requests, from)
      op.entry, op.rule = named(op.key, form)
      op.stale = is_outside_periods(op.rule)
      op.receipt_key, op.receipt = receipt, entries[receipt]
      op.receipt.is_receipt = true
    end
    n = n + 1
    ops[n] = op
  end
end
