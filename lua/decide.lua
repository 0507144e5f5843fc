-- Decisions: a request makes all its charges or none. Each charge is assessed against its key's
-- state. If an enforced policy denies, only strikes are written, and otherwise each allowing policy
-- is charged. The row contains every policy's outcome, remaining units and waits.

local ALLOW, PASS, DENY = outcome.ALLOW, outcome.PASS, outcome.DENY

local function fault_row(entry, key)
  return FAULT .. struct.pack('>BI2', entry.fault, key)
end

-- Decides a charge at an instant.
local function assess_charge(charge, at)
  local rule, entry, state, cost = charge.rule, charge.entry, charge.state, charge.cost
  local required = cost > 0 and cost + charge.headroom or 0
  charge.outcome, charge.remaining, charge.reset_after, charge.wait, charge.charged_at,
    charge.refunded = assess(rule, entry, state, required, at)
  if charge.headroom > 0 and charge.outcome == ALLOW then
    charge.outcome, charge.remaining, charge.reset_after, charge.wait, charge.charged_at,
      charge.refunded = assess(rule, entry, state, cost, at)
  end
end

-- The first instant at which a charge that queues may leave: not before the charges before it.
local function leaves_at(charge)
  if charge.outcome == ALLOW then return max(charge.charged_at, now) end
  if charge.outcome == DENY then return number.add(now, charge.wait) end
  return now
end

-- Decides a charge that queues until the request leaves.
local function queue(charge, at)
  if charge.queue == 0 then return end
  -- A shadow policy delays no request, but its own requests still follow one another.
  if not charge.enforce then at = max(at, leaves_at(charge)) end
  if at <= now then return end
  local delay, most = at - now, charge.queue - 1
  if charge.entry.holds then
    -- Blocks of leased units lapse at unknown instants, so nothing queues behind them.
    if charge.outcome == ALLOW then charge.outcome, charge.remaining, charge.wait = DENY, 0, delay end
    return
  end
  assess_charge(charge, at)
  if charge.reset_after > 0 then charge.reset_after = number.add(charge.reset_after, delay) end
  if charge.outcome == DENY then
    charge.wait = number.add(charge.wait, delay)
  elseif charge.outcome == ALLOW and delay <= most then
    charge.wait = delay
  elseif charge.outcome == ALLOW then
    charge.outcome, charge.remaining, charge.wait = DENY, 0, delay - most
  end
end

-- Adds a strike to the penalties of subjects that another policy denies, and assesses these
-- penalties again.
local function strike(op)
  local denied = {}
  for i = 1, #op do
    local charge = op[i]
    if charge.enforce and charge.outcome >= DENY and not charge.rule.penalises then
      denied[charge.subject] = true
    end
  end
  for i = 1, #op do
    local charge = op[i]
    local rule, state = charge.rule, charge.state
    if rule.counts_denials and not charge.dry and charge.cost > 0 and denied[charge.subject] then
      keep(charge.entry, rule, state)
      rule.algorithm.owe(rule, state, 1, now)
      count_elsewhere(charge.entry, rule, 1, now)
      assess_charge(charge, now)
    end
  end
end

-- Assesses a dry-run charge on top of the charges before it.
local function ask(charge)
  charge.state = state_under(charge.rule, charge.entry)
  assess_charge(charge, now)
  queue(charge, now)
end

-- How long a denied key has no room for one unit, so no charge can change it. Zero if there is
-- room, and for a quota under which the key has not been charged.
local function frozen_for(charge)
  local entry, rule = charge.entry, charge.rule
  if charge.dry or charge.queue > 0 or charge.remaining > 0 then return 0 end
  local version = version_of(entry, rule)
  if not version or version.rule ~= rule then return 0 end
  if charge.outcome == DENY and charge.cost == 1 and charge.headroom == 0 then
    return charge.wait
  end
  local _, _, _, wait = assess(rule, entry, charge.state, 1, now)
  return wait
end

-- Decides one request: makes all its charges or none.
local function decide(op)
  local admitted, strikes, leaves = ADMITTED, false, now
  for i = 1, #op do
    local charge = op[i]
    local entry, rule = charge.entry, charge.rule
    if rule.counts_denials and not charge.dry then strikes = true end
    if entry.fault then return fault_row(entry, charge.key) end
    local state = state_under(rule, entry)
    charge.state = state
    if not charge.dry then
      assess_charge(charge, now)
      if charge.enforce and charge.queue > 0 then leaves = max(leaves, leaves_at(charge)) end
    end
  end
  for i = 1, #op do
    local charge = op[i]
    if not charge.dry then
      queue(charge, leaves)
      if charge.outcome >= DENY and charge.enforce then admitted = DENIED end
    end
  end
  if strikes and admitted == DENIED then strike(op) end
  local row = admitted
  for i = 1, #op do
    local charge = op[i]
    local dry = charge.dry
    if dry then ask(charge) end
    if charge.outcome == ALLOW then
      local rule, state = charge.rule, charge.state
      if admitted == DENIED or dry then
        -- This request is not charged, so report what remains without it.
        local _
        _, charge.remaining, charge.reset_after = assess(rule, charge.entry, state, 0, now)
        charge.outcome, charge.wait, charge.charged_at = PASS, 0, 0
      elseif charge.cost > 0 and not rule.penalises then
        local at = charge.queue > 0 and now + charge.wait or now
        keep(charge.entry, rule, state)
        rule.algorithm.charge(rule, state, at, charge.cost)
        count_elsewhere(charge.entry, rule, charge.cost, at)
      end
    elseif charge.outcome >= DENY and admitted == DENIED then
      charge.charged_at = frozen_for(charge)
    end
    row = row .. struct.pack('>BI5I7I7I7', charge.outcome, charge.remaining,
      charge.reset_after, charge.wait, charge.charged_at)
    if charge.outcome == ALLOW then row = row .. struct.pack('>I7', charge.refunded or 0) end
  end
  return row
end
