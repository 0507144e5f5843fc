-- Sliding window log: at most `limit` units in any window, wherever one lays it.
-- Twin of crates/tollgate-core/src/algorithm/sliding_window_log.rs.
--
-- rule: limit, window, grid.
-- state: entries head + 1 to count, their running totals on top of `base`, `total` and
--   `newest` of the last one, last_seen. Entries are read when they are looked at and
--   then are in `ats` and `totals`; those from `changed` on differ from what is stored, and so do
--   those of `patch`, which are bytes. A long log has `long` instead (long_log.lua).
-- view: state, seen, head, base.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local add, since = number.add, number.since

local LAYOUT = '>I4I4I7I7I7I7'
local HEADER = 36
local ENTRY = 14
-- Entries of one read. A read of one entry costs the same, and the last six steps of a bisection
-- stay within one page.
local PAGE = 64
-- Entries of a log that is written as a whole: one command instead of three.
local SHORT = 128
-- A log with more entries than this is written as a long one.
local MANY = 4096
-- Added to the number of entries before the head of a long log.
local LONG = 2147483648
-- Running totals start over before they pass this, far below 2^53 where Lua's numbers
-- have gaps.
local REBASE = 4503599627370496
-- Entries that a log of a thousandth of its window and the room behind them may take together.
-- Redis allocates 14 KiB for them, and 16 KiB for more.
local COMPACT = 1018
-- Bytes to read first: those of a short log, and of what stands before it if nothing is leased.
local FIRST_READ = 20 + HEADER + SHORT * ENTRY

local long = false -- made when it is first needed

local function longer()
  long = long or long_log()
  return long
end

-- The instant and the running total of an entry.
local function entry(state, i)
  if state.long then return long.entry(state, i) end
  local at = state.ats[i]
  if at then return at, state.totals[i] end
  local bytes, first, patch = state.bytes, state.first, state.patch
  local from = first + (i - 1) * ENTRY
  if patch and i >= patch.low and i <= patch.high then
    bytes, from = patch.bytes, (i - patch.low) * ENTRY + 1
  elseif from + ENTRY - 1 > #bytes then
    local page = floor((i - 1) / PAGE)
    bytes = state.pages[page]
    if not bytes then
      local start = floor(first - 1 + page * PAGE * ENTRY)
      bytes = redis.call('GETRANGE', state.key, start, start + PAGE * ENTRY - 1)
      state.pages[page] = bytes
    end
    from = (i - 1 - page * PAGE) * ENTRY + 1
  end
  local total
  at, total = struct.unpack('>I7I7', bytes, from)
  state.ats[i], state.totals[i] = at, total
  return at, total
end

local function put(state, i, at, total)
  if state.long then return long.put(state, i, at, total) end
  state.ats[i], state.totals[i] = at, total
  if i < state.changed then state.changed = i end
end

-- The bytes of entries `low` to `high`, all before `changed`.
local function range(state, low, high)
  if low > high then return '' end
  local patch = state.patch
  if patch and low <= patch.high and high >= patch.low then
    local from, to = max(low, patch.low), min(high, patch.high)
    local inside = patch.bytes:sub((from - patch.low) * ENTRY + 1, (to - patch.low + 1) * ENTRY)
    state.patch = false
    local bytes = range(state, low, from - 1) .. inside .. range(state, to + 1, high)
    state.patch = patch
    return bytes
  end
  local from, to = state.first - 1 + (low - 1) * ENTRY, state.first - 1 + high * ENTRY
  if to <= #state.bytes then return state.bytes:sub(from + 1, to) end
  return redis.call('GETRANGE', state.key, floor(from), floor(to - 1))
end

-- Adds `units` to the running totals of entries `low` to `high`, all before `changed`, and moves the
-- entries on by `places`. Many entries in one command cost a third of what they cost
-- one by one.
local function shift(state, low, high, units, places)
  if low > high then return end
  local old, new = range(state, low, high), {}
  local from = 1
  while from <= #old do
    local count = min(PAGE, (#old - from + 1) / ENTRY)
    local layout = '>' .. ('I7I7'):rep(count)
    local numbers = { struct.unpack(layout, old, from) }
    for i = 2, 2 * count, 2 do numbers[i] = numbers[i] + units end
    new[#new + 1] = struct.pack(layout, spread(numbers, 1, 2 * count))
    from = from + count * ENTRY
  end
  low, high = low + places, high + places
  local bytes, patch = table.concat(new), state.patch
  if patch then
    bytes = range(state, patch.low, low - 1) .. bytes .. range(state, high + 1, patch.high)
    low, high = min(low, patch.low), max(high, patch.high)
  end
  state.patch = { low = low, high = high, bytes = bytes }
  local ats, totals = {}, {}
  for i = state.changed, state.count do ats[i], totals[i] = state.ats[i], state.totals[i] end
  state.ats, state.totals = ats, totals
end

-- The first of the entries from `low` on whose instant (column 1) or running total
-- (column 2) is at least `bound`, or count + 1. The search starts at `guess` and doubles
-- its step, so that it reads little when the guess was good.
local function search(state, column, bound, low, guess)
  local function reaches(i)
    local at, total = entry(state, i)
    if column == 1 then return at >= bound end
    return total >= bound
  end
  local high = state.count + 1
  local step = 1
  if guess < high and not reaches(guess) then
    low = guess + 1
    while low + step < high do
      if reaches(low + step) then
        high = low + step
        break
      end
      low, step = low + step + 1, step * 2
    end
  else
    high = min(guess, high)
    while high - step >= low do
      if not reaches(high - step) then
        low = high - step + 1
        break
      end
      high, step = high - step, step * 2
    end
  end
  while low < high do
    local middle = floor((low + high) / 2)
    if reaches(middle) then high = middle else low = middle + 1 end
  end
  return low
end

-- `instant` rounded up to the grid.
local function round_up(rule, instant)
  if rule.grid == 1 then return instant end
  return min(ceil(instant / rule.grid) * rule.grid, number.MAX)
end

local function refresh(rule, state, now)
  local head, base = state.head, state.base
  if head == state.count then return state, now, head, base end
  local seen = max(now, state.last_seen)
  -- An entry counts while at + window > seen.
  local alive = seen - rule.window + 1
  if entry(state, head + 1) < alive then
    -- Most often the next one still counts, so that is where to look first.
    head = search(state, 1, alive, head + 2, head + 2) - 1
    local _, total = entry(state, head)
    base = total
  end
  return state, seen, head, base
end

-- Moves on to `now`, forgets what no longer counts, and returns the instant reached.
local function prune(rule, state, now)
  local _, seen, head, base = refresh(rule, state, now)
  state.head, state.base, state.last_seen = head, base, seen
  if head == state.count then state.total, state.newest = base, 0 end
  return seen
end

-- Lets running totals start over from zero.
local function rebase(state)
  for i = state.head + 1, state.count do
    local at, total = entry(state, i)
    put(state, i, at, total - state.base)
  end
  state.total, state.base = state.total - state.base, 0
end

-- Adds an entry, or to the last one where they share a grid point.
local function push(rule, state, seen, units)
  local at = round_up(rule, seen)
  state.total = state.total + units
  if state.head < state.count and state.newest >= at then
    put(state, state.count, state.newest, state.total)
  else
    state.count, state.newest = state.count + 1, at
    put(state, state.count, at, state.total)
  end
  if state.long then
    -- Its limit is so small that running totals take years to pass the bound.
    long.compact(state)
  elseif state.total > REBASE then
    rebase(state)
  end
end

-- The instant of the first entry with which, all older ones included, `units` are gone.
-- There is one: a cost that fits an empty window asks for no more than what is in this one.
local function freed(state, head, base, units)
  local low, live = head + 1, state.count - head
  -- Where it would be if all entries were alike.
  local guess = low + floor((units - 1) / (state.total - base) * live)
  local index = search(state, 2, base + units, low, min(guess, state.count))
  if index > state.count then return state.newest end
  return (entry(state, index))
end

-- A log without entries. It is not stored anywhere yet.
local function empty(base, last_seen)
  return {
    head = 0, count = 0, base = base, total = base, newest = 0, last_seen = last_seen,
    ats = {}, totals = {}, changed = 1, patch = false, pages = {}, bytes = '', first = 1, slots = 0,
    long = false,
  }
end

local function fresh()
  return empty(0, 0)
end

local function assess(rule, now, cost, state, seen, head, base)
  local used, newest = state.total - base, state.newest
  local kind, wait, charged_at, used_after = EXCEED, 0, 0, used
  if cost > rule.limit then
    -- Never, however long one waits.
  elseif cost == 0 or used + cost <= rule.limit then
    kind, charged_at, used_after = ALLOW, seen, used + cost
    -- A grid that was coarser may have put the last entry off even further.
    if cost > 0 then newest = max(round_up(rule, seen), newest) end
  else
    local fits_at = add(freed(state, head, base, used + cost - rule.limit), rule.window)
    kind, wait = DENY, since(fits_at, now)
  end
  local reset_after = used_after == 0 and 0 or since(add(newest, rule.window), now)
  return kind, max(rule.limit - used_after, 0), reset_after, wait, charged_at
end

local function charge(rule, state, now, cost)
  local seen = prune(rule, state, now)
  push(rule, state, seen, cost)
end

local function give_back(rule, state, charged, units, now)
  prune(rule, state, now)
  local at, first, last = round_up(rule, charged.charged_at), state.head + 1, state.count
  if first > last then return 0 end
  -- Most charges are settled soon after.
  local index = search(state, 1, at, first, last)
  if index > last or entry(state, index) ~= at then return 0 end
  local before = state.base
  if index > first then
    local _, total = entry(state, index - 1)
    before = total
  end
  local _, after = entry(state, index)
  units = min(units, after - before)
  if index == first and after - units == before then
    -- The oldest charge goes as if it had aged out: the others stay as they are.
    state.head, state.base = first, after
    if state.total == after then state.head, state.newest = last, 0 end
    return units
  end
  local removed = after - units == before and 1 or 0
  if state.long then
    if units == 0 then return 0 end
    long.take(state, index, units)
    if state.total == state.base then
      state.head, state.newest = last, 0
    elseif removed == 1 and index == last then
      -- The last one is never dead.
      state.count = search(state, 2, state.total, first, last - 1)
      state.newest = (entry(state, state.count))
    else
      state.long.dead = state.long.dead + removed
    end
    long.compact(state)
    return units
  end
  if index - first < last - index and index < state.changed then
    -- Fewer are before it: those may as well have more in front of them.
    shift(state, first, index - 1, units, removed)
    state.base, state.head = state.base + units, state.head + removed
    return units
  end
  local from = index + removed
  if state.changed - from > PAGE then
    shift(state, from, state.changed - 1, -units, -removed)
    from = state.changed
    state.changed = state.changed - removed
  end
  for i = from, last do
    local at_i, total = entry(state, i)
    put(state, i - removed, at_i, total - units)
  end
  state.total, state.count = state.total - units, last - removed
  if removed == 1 then
    if state.changed > last then state.changed = last end
    state.newest = state.count > state.head and (entry(state, state.count)) or 0
  end
  return units
end

local function owe(rule, state, units, now)
  local seen = prune(rule, state, now)
  units = min(units, since(2 * rule.limit, state.total - state.base))
  if units > 0 then push(rule, state, seen, units) end
  return units
end

local function consumed(rule, state, now)
  local _, _, _, base = refresh(rule, state, now)
  return state.total - base
end

local function resume(rule, units, now)
  local state = empty(0, now)
  if units > 0 then push(rule, state, now, units) end
  return state
end

-- The charges themselves are carried over, onto the new grid; the new window decides when they cease
-- to count. Charges that count no more are left out, even if the new window reaches back to them: the
-- key may have been dropped by now, and the result must be the same.
--
-- The core also drops the oldest entries if a smaller quota has no room for the log. No answer
-- depends on them: a denial reads the last `limit` units, and each entry has at least one. The log is
-- written only if a charge finds room, so fewer units count.
local function convert(rule, from, state, now)
  local _, seen, head, base = refresh(from, state, now)
  local converted = empty(base, seen)
  for i = head + 1, state.count do
    local at, total = entry(state, i)
    at = round_up(rule, at)
    -- Of a long log some are dead.
    if total > converted.total then
      if converted.count == 0 or converted.newest ~= at then
        converted.count, converted.newest = converted.count + 1, at
      end
      put(converted, converted.count, at, total)
      converted.total = total
    end
  end
  prune(rule, converted, now)
  return converted
end

local function is_fresh(rule, state, now)
  local _, _, head = refresh(rule, state, now)
  return head == state.count
end

-- When a state that is not fresh will be.
local function fresh_at(rule, state)
  return add(state.newest, rule.window)
end

local function header(front, count, head, state)
  return front
    .. struct.pack(LAYOUT, count, head, state.base, state.total, state.newest, state.last_seen)
end

-- Packs the entries `from` to `count`, which are all in `ats` and `totals`.
local function packed(state, from)
  local ats, totals, parts = state.ats, state.totals, {}
  for i = from, state.count do
    parts[i - from + 1] = struct.pack('>I7I7', ats[i], totals[i])
  end
  return table.concat(parts)
end

-- The whole string, without the entries before the head. A long one gets room for an
-- eighth more, so that most charges are written in place: to grow a string piece by piece
-- would make Redis reserve twice its length.
local function encode(front, state)
  local live, changed = state.count - state.head, max(state.changed, state.head + 1)
  if state.long then
    local before = function(count, head) return header(front, count, LONG + head, state) end
    return long.encode(state, before)
  end
  local kept, room = range(state, state.head + 1, changed - 1), ''
  local spare = live > SHORT and floor(live / 8) or 0
  if live < COMPACT then spare = min(spare, COMPACT - live) end
  room = ('\0'):rep(spare * ENTRY)
  if live > MANY then room = room .. longer().area(live + spare) end
  local first = header(front, live, live > MANY and LONG or 0, state)
  return first .. kept .. packed(state, changed) .. room
end

-- Brings a long string up to date in place. Says no where it is written as a whole: when
-- it is short, or new, or there is no more room, or it does not stay where it is.
local function amend(front, state, store)
  local head, count = state.head, state.count
  -- With more or fewer holds before it, all of it is elsewhere.
  if #front + HEADER + 1 ~= state.first then return false end
  if state.long then
    local before = function(some, first) return header(front, some, LONG + first, state) end
    return long.amend(state, before, store)
  end
  if count <= SHORT or count > state.slots then return false end
  local changed = max(state.changed, head + 1)
  store('SETRANGE', state.key, 0, header(front, count, head, state))
  local patch = state.patch
  if patch then
    local low, high = max(patch.low, head + 1), min(patch.high, changed - 1)
    if low <= high then
      local from = state.first - 1 + (low - 1) * ENTRY
      store('SETRANGE', state.key, floor(from), range(state, low, high))
    end
  end
  if changed <= count then
    local from = state.first - 1 + (changed - 1) * ENTRY
    store('SETRANGE', state.key, floor(from), packed(state, changed))
  end
  return true
end

-- Reads the beginning of a string, which may be all of it.
local function decode(rule, value, from, key)
  local first, length = from + HEADER, #value
  if length < first - 1 then return nil end
  local count, head, base, total, newest, last_seen = struct.unpack(LAYOUT, value, from)
  local is_long = head >= LONG
  if is_long then head = head - LONG end
  if head > count or base > total then return nil end
  if is_long or count > SHORT or length == FIRST_READ then length = redis.call('STRLEN', key) end
  local slots = floor((length - first + 1) / ENTRY)
  if count > slots then return nil end
  local state = {
    head = head, count = count, base = base, total = total, newest = newest,
    last_seen = last_seen, ats = {}, totals = {}, changed = count + 1, patch = false, pages = {},
    bytes = value, first = first, slots = slots, key = key, long = false,
  }
  if is_long then
    state.long = longer().decode(state, length)
    if not state.long then return nil end
  end
  return state
end

return {
  fresh = fresh,
  refresh = refresh,
  assess = assess,
  charge = charge,
  give_back = give_back,
  owe = owe,
  consumed = consumed,
  resume = resume,
  convert = convert,
  is_fresh = is_fresh,
  fresh_at = fresh_at,
  encode = encode,
  amend = amend,
  decode = decode,
  FIRST_READ = FIRST_READ,
}
