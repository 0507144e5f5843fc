-- Sliding window log: at most `limit` units in *any* window.
-- Lua port of crates/tollgate-core/src/algorithm/sliding_window_log.rs.
--
-- rule: limit, window, grid.
-- state: entries head + 1 to count, with running totals that start from `base`; `total` and
--   `newest`, the running total and instant of the last entry; last_seen. Entries are read on first
--   use and cached in `ats` and `totals`. Entries from `changed` on differ from the stored entries,
--   and so do the entries of `patch`, which is packed. A long log uses `long` instead
--   (long_log.lua).
-- view: state, seen, head, base.
--
-- Longer than the other ports and than its twin, because Redis stores a packed string, of which this
-- reads and writes only the parts that a call needs.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local add, since = number.add, number.since

local LAYOUT = '>I4I4I7I7I7I7'
local HEADER = 36
local ENTRY = 14
-- Entries per read. Reading a single entry costs as much, and a bisection's last six steps remain
-- within a page.
local PAGE = 64
-- A log of up to this many entries is rewritten completely: one command instead of three.
local SHORT = 128
-- A log with more entries is written as a long log.
local MANY = 4096
-- Added to the stored head of a long log, to mark it.
local LONG = 2147483648
-- Running totals restart before they exceed this, far below 2^53, where Lua's numbers start to have
-- gaps.
local REBASE = 4503599627370496
-- The maximum number of entries, including spare entries, that a log at a thousandth of the window
-- gets room for. Redis allocates 14 KiB up to this size, and 16 KiB above.
local COMPACT = 1018
-- Bytes of the first read: a short log, and the bytes before it if the key has no leased units.
local FIRST_READ = 20 + HEADER + SHORT * ENTRY

local long = false -- created on first use

local function longer()
  long = long or long_log()
  return long
end

-- An entry's instant and running total.
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

-- Adds `units` to the running totals of entries `low` to `high`, all before `changed`, and moves
-- the entries by `places`. Unpacking many entries in one call takes a third of the time.
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

-- The first entry from `low` on with an instant (column 1) or running total (column 2) of at least
-- `bound`, or count + 1. The search starts at `guess` and doubles its steps, so it reads few pages
-- if the guess is good.
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
  local head, base, seen = state.head, state.base, max(now, state.last_seen)
  if head == state.count then return state, seen, head, base end
  -- An entry counts while at + window > seen.
  local alive = seen - rule.window + 1
  if entry(state, head + 1) < alive then
    -- Usually the next entry still counts, so look there first.
    head = search(state, 1, alive, head + 2, head + 2) - 1
    local _, total = entry(state, head)
    base = total
  end
  return state, seen, head, base
end

-- Advances to `now`, drops entries that no longer count, and returns the instant reached.
local function prune(rule, state, now)
  local _, seen, head, base = refresh(rule, state, now)
  state.head, state.base, state.last_seen = head, base, seen
  if head == state.count then state.total, state.newest = base, 0 end
  return seen
end

-- Restarts the running totals from zero.
local function rebase(state)
  for i = state.head + 1, state.count do
    local at, total = entry(state, i)
    put(state, i, at, total - state.base)
  end
  state.total, state.base = state.total - state.base, 0
end

-- Adds an entry, or adds to the last entry if both share a grid point.
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
    -- No rebase: with limits this small, running totals take years to reach the bound.
    long.compact(state)
  elseif state.total > REBASE then
    rebase(state)
  end
end

-- Copies a long log's live entries to a short log, whose entries can move.
local function shorten(state)
  local short = { ats = {}, totals = {}, count = 0, total = state.base }
  for i = state.head + 1, state.count do
    local at, total = entry(state, i)
    -- Skip dead entries.
    if total > short.total then
      short.count, short.total = short.count + 1, total
      short.ats[short.count], short.totals[short.count] = at, total
    end
  end
  state.ats, state.totals, state.count, state.head = short.ats, short.totals, short.count, 0
  state.long, state.changed, state.slots, state.patch = false, 1, 0, false
end

-- Adds an entry among newer entries, which only permits need.
local function insert(rule, state, at, units)
  if state.head == state.count or state.newest <= at then return push(rule, state, at, units) end
  if state.long then shorten(state) end
  local i = state.count
  while i > state.head do
    local at_i, total = entry(state, i)
    if at_i < at then break end
    put(state, i, at_i, total + units)
    i = i - 1
  end
  state.total = state.total + units
  if (entry(state, i + 1)) == at then return end
  -- Make room for another entry.
  for j = state.count, i + 1, -1 do
    local at_j, total = entry(state, j)
    put(state, j + 1, at_j, total)
  end
  local before = state.base
  if i > state.head then
    local _, total = entry(state, i)
    before = total
  end
  put(state, i + 1, at, before + units)
  state.count = state.count + 1
end

-- The instant of the first entry at which this and all older entries add up to `units`. Such an
-- entry exists, because a cost that fits an empty window needs no more units than are in this
-- window.
local function freed(state, head, base, units)
  local low, live = head + 1, state.count - head
  -- Its place if all entries had equal units.
  local guess = low + floor((units - 1) / (state.total - base) * live)
  local index = search(state, 2, base + units, low, min(guess, state.count))
  if index > state.count then return state.newest end
  return (entry(state, index))
end

-- A log without entries, which is not stored yet.
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
    -- Never fits.
  elseif cost == 0 or used + cost <= rule.limit then
    kind, charged_at, used_after = ALLOW, seen, used + cost
    -- A coarser grid, before the quota changed, may have rounded the last entry up even further.
    if cost > 0 then newest = max(round_up(rule, seen), newest) end
  else
    local fits_at = add(freed(state, head, base, used + cost - rule.limit), rule.window)
    kind, wait = DENY, since(fits_at, now)
  end
  local reset_after = since(used_after == 0 and seen or add(newest, rule.window), now)
  return kind, max(rule.limit - used_after, 0), reset_after, wait, charged_at
end

local function charge(rule, state, now, cost)
  local seen = prune(rule, state, now)
  push(rule, state, seen, cost)
end

-- Removes up to `units` from the entry at an instant, and returns the number removed.
local function take(state, at, units)
  local first, last = state.head + 1, state.count
  if first > last then return 0 end
  -- Most charges are settled soon, so search from the end.
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
    -- Drop the oldest charge as if it had aged out, so the other entries need no change.
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
      -- The last entry is never dead.
      state.count = search(state, 2, state.total, first, last - 1)
      state.newest = (entry(state, state.count))
    else
      state.long.dead = state.long.dead + removed
    end
    long.compact(state)
    return units
  end
  if index - first < last - index and index < state.changed then
    -- Fewer entries are before it, so raise their totals and the base instead.
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

-- A refund does not move time, so it drops no other entry: if the clock has stepped back since, an
-- entry that had expired counts again, as it would without the refund.
local function give_back(rule, state, charged, units, now)
  local at = round_up(rule, charged.charged_at)
  local _, seen = refresh(rule, state, now)
  if since(seen, at) >= rule.window then return 0 end
  return take(state, at, units)
end

-- The units that can be charged until the debt reaches the limit, in a pruned state.
local function room_for_debt(rule, state)
  return since(2 * rule.limit, state.total - state.base)
end

local function owe(rule, state, units, now)
  local seen = prune(rule, state, now)
  units = min(units, room_for_debt(rule, state))
  if units > 0 then push(rule, state, seen, units) end
  return units
end

-- Forgets the oldest units beyond twice the limit, which cannot change a decision while the newer
-- units count. Returns whether there were such units.
local function trim(rule, state)
  local over = since(state.total - state.base, 2 * rule.limit)
  if over == 0 then return false end
  local low = state.head + 1
  state.base = state.base + over
  state.head = search(state, 2, state.base + 1, low, low) - 1
  return true
end

-- The newest units count, because they count for longest.
local function count(rule, state, units, now)
  local seen = prune(rule, state, now)
  local counted = min(units, 2 * rule.limit)
  push(rule, state, seen, counted)
  return not trim(rule, state) and counted == units
end

local function consumed(rule, state, now)
  local _, _, _, base = refresh(rule, state, now)
  return state.total - base
end

-- The newest entry may be rounded up to later than the last charge, and a refund may have been seen
-- since.
local function counts_from(state)
  if state.head == state.count then return state.last_seen end
  return min(state.newest, state.last_seen)
end

local function resume(rule, units, at)
  local state = empty(0, at)
  units = min(units, 2 * rule.limit)
  if units > 0 then push(rule, state, at, units) end
  return state
end

-- Charges move to the new grid and age by the new window. Charges that had expired in the old
-- window at the last charge remain expired, because the state may have dropped them.
local function convert(rule, from, state)
  local _, seen, head, base = refresh(from, state, state.last_seen)
  local converted = empty(base, seen)
  for i = head + 1, state.count do
    local at, total = entry(state, i)
    at = round_up(rule, at)
    -- Skip a long log's dead entries.
    if total > converted.total then
      if converted.count == 0 or converted.newest ~= at then
        converted.count, converted.newest = converted.count + 1, at
      end
      put(converted, converted.count, at, total)
      converted.total = total
    end
  end
  prune(rule, converted, seen)
  trim(rule, converted)
  return converted
end

-- A copy whose entries are moved in time: `later` by a span, then `earlier` by another.
local function moved(state, later, earlier)
  local copy = empty(state.base, state.last_seen)
  for i = state.head + 1, state.count do
    local at, total = entry(state, i)
    -- Skip a long log's dead entries.
    if total > copy.total then
      copy.count, copy.total, copy.newest = copy.count + 1, total, max(add(at, later) - earlier, 0)
      put(copy, copy.count, copy.newest, total)
    end
  end
  return copy
end

local function is_fresh(rule, state, now)
  local _, _, head = refresh(rule, state, now)
  return state.last_seen <= now and head == state.count
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return max(add(state.newest, rule.window), state.last_seen)
end

local function header(front, count, head, state)
  return front
    .. struct.pack(LAYOUT, count, head, state.base, state.total, state.newest, state.last_seen)
end

-- Packs the entries `from` to `count`, all of which are in `ats` and `totals`.
local function packed(state, from)
  local ats, totals, parts = state.ats, state.totals, {}
  for i = from, state.count do
    parts[i - from + 1] = struct.pack('>I7I7', ats[i], totals[i])
  end
  return table.concat(parts)
end

-- The complete string, without the entries before the head. Above SHORT entries it gets room for an
-- eighth more, so most charges are written in place: if a string grows piece by piece, Redis
-- reserves twice its length.
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

-- The complete string, without spare room, to be stored inside another version's string.
local function encode_whole(front, state)
  if state.long then shorten(state) end
  local changed = max(state.changed, state.head + 1)
  local kept = range(state, state.head + 1, changed - 1)
  return header(front, state.count - state.head, 0, state) .. kept .. packed(state, changed)
end

-- Updates a string in place. Returns false if it must be rewritten completely: it is short or new,
-- has no room, or its entries move.
local function amend(front, state, store)
  local head, count = state.head, state.count
  -- The number of blocks or versions before the log changed, so the entire log moves.
  if not state.key or #front + HEADER + 1 ~= state.first then return false end
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

-- Reads the first bytes of a string, which may be all of it. Without a key, they are all of it.
local function decode(rule, value, from, key)
  local first, length = from + HEADER, #value
  if length < first - 1 then return nil end
  local count, head, base, total, newest, last_seen = struct.unpack(LAYOUT, value, from)
  local is_long = head >= LONG
  if is_long then head = head - LONG end
  if head > count or base > total then return nil end
  if key and (is_long or count > SHORT or length == FIRST_READ) then
    length = redis.call('STRLEN', key)
  end
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
  count = count,
  consumed = consumed,
  counts_from = counts_from,
  resume = resume,
  convert = convert,
  is_fresh = is_fresh,
  fresh_at = fresh_at,
  encode = encode,
  encode_whole = encode_whole,
  amend = amend,
  decode = decode,
  prune = prune,
  take = take,
  insert = insert,
  moved = moved,
  room_for_debt = room_for_debt,
  FIRST_READ = FIRST_READ,
}
