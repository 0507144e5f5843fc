-- Logs of thousands of entries. A refund in the middle changes only a few pages.
--
-- A refund lowers the running totals of all later entries. Instead of rewriting them, each page of
-- entries has a step: the units that were refunded in the page before it. An entry's running total
-- is the stored total less the steps of all pages up to the entry's page. Each group of steps has
-- its sum stored too.
--
-- If all units of an entry are refunded, it remains as a dead entry: its running total equals the
-- total of the entry before it. Once half of the entries are dead, each charge and refund moves
-- some live entries up, from the head to the end. The gap in between contains no entries.
--
-- state.long: slots; gap_at and gap, the entry before the gap and its length; dead, the approximate
--   number of dead entries; area, the offset of the groups, which the steps follow; pages and
--   changed_groups, which must be written.

local ENTRY, PAGE, NUMBER = 14, 64, 7
-- Bytes after the steps: slots, gap_at, gap and dead.
local TAIL = 16
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

-- One more than the pages with entries: a refund in the last page adds a step to the next page.
local function pages_of(slots)
  return ceil(slots / PAGE) + 1
end

local function groups_of(slots)
  return ceil(pages_of(slots) / PAGE)
end

local function area_of(slots)
  return (pages_of(slots) + groups_of(slots)) * NUMBER + TAIL
end

local function get(state, from, bytes)
  return redis.call('GETRANGE', state.key, floor(from), floor(from + bytes - 1))
end

local function numbers(bytes, count)
  local list = { struct.unpack('>' .. ('I7'):rep(count), bytes) }
  list[count + 1] = nil
  return list
end

local function packed(list)
  return struct.pack('>' .. ('I7'):rep(#list), spread(list))
end

local function groups(state)
  local long = state.long
  if not long.groups then
    local count = groups_of(long.slots)
    long.groups = {}
    for first = 1, count, PAGE do
      local some = min(PAGE, count - first + 1)
      local from = long.area + (first - 1) * NUMBER
      local list = numbers(get(state, from, some * NUMBER), some)
      for i = 1, some do long.groups[first + i - 1] = list[i] end
    end
  end
  return long.groups
end

-- The steps in a group.
local function steps(state, group)
  local long = state.long
  local list = long.steps[group]
  if list then return list end
  local first = group * PAGE
  local count = max(min(PAGE, pages_of(long.slots) - first), 0)
  list = {}
  if count > 0 then
    local from = long.area + (groups_of(long.slots) + first) * NUMBER
    list = numbers(get(state, from, count * NUMBER), count)
  end
  for i = count + 1, PAGE do list[i] = 0 end
  long.steps[group] = list
  return list
end

-- The units that were refunded in the pages before a page.
local function refunded(state, page)
  local long = state.long
  local sum = long.sums[page]
  if sum then return sum end
  sum = 0
  local group = floor(page / PAGE)
  local all, list = groups(state), steps(state, group)
  for i = 1, min(group, #all) do sum = sum + all[i] end
  for i = 1, page - group * PAGE + 1 do sum = sum + list[i] end
  long.sums[page] = sum
  return sum
end

-- An entry's page, and its place in the page, from 0.
local function place(state, i)
  local long = state.long
  if i > long.gap_at then i = i + long.gap end
  local page = floor((i - 1) / PAGE)
  return page, i - 1 - page * PAGE
end

local function bytes_of(state, page)
  local long = state.long
  local bytes = long.bytes[page]
  if not bytes then
    local count = max(min(PAGE, long.slots - page * PAGE), 0)
    bytes = count > 0 and get(state, state.first - 1 + page * PAGE * ENTRY, count * ENTRY) or ''
    long.bytes[page] = bytes
  end
  return bytes
end

-- A page's numbers. Marks the page to be written.
local function changed(state, page)
  local pages = state.long.pages
  if not pages[page] then
    local bytes = bytes_of(state, page)
    pages[page] = #bytes > 0 and numbers(bytes, #bytes / NUMBER) or {}
  end
  return pages[page]
end

-- An entry's instant and running total.
local function entry(state, i)
  local page, at = place(state, i)
  local list = state.long.pages[page]
  local instant, total
  if list then
    instant, total = list[2 * at + 1], list[2 * at + 2]
  else
    instant, total = struct.unpack('>I7I7', bytes_of(state, page), at * ENTRY + 1)
  end
  return instant, total - refunded(state, page)
end

local function put(state, i, instant, total)
  local page, at = place(state, i)
  local list = changed(state, page)
  list[2 * at + 1], list[2 * at + 2] = instant, total + refunded(state, page)
end

-- Refunds units from an entry.
local function take(state, i, units)
  local long = state.long
  local page, at = place(state, i)
  local list = changed(state, page)
  -- The gap contains no totals, so its numbers may be less than the units.
  for k = 2 * at + 2, #list, 2 do list[k] = max(list[k] - units, 0) end
  local group = floor((page + 1) / PAGE)
  local all, some = groups(state), steps(state, group)
  all[group + 1] = (all[group + 1] or 0) + units
  some[page + 2 - group * PAGE] = some[page + 2 - group * PAGE] + units
  long.changed_groups[group], long.sums = true, {}
  state.total = state.total - units
end

-- Moves some live entries up if half of the entries are dead.
local function compact(state)
  local long, count = state.long, state.count
  if long.gap_at > 0 and long.gap_at >= count then
    long.gap, long.gap_at, long.dead = 0, 0, 0
    return
  end
  if long.gap_at == 0 and 2 * long.dead <= count - state.head + PAGE then return end
  local from = max(long.gap_at, state.head)
  local last, kept, before = min(from + PAGE, count), from, state.base
  long.gap_at = from
  if from > state.head then
    local _, total = entry(state, from)
    before = total
  end
  for i = from + 1, last do
    local instant, total = entry(state, i)
    if total > before then
      kept, before = kept + 1, total
      if kept < i + long.gap then
        -- Its new place is before the gap.
        long.gap_at = kept
        put(state, kept, instant, total)
        long.gap_at = from
      end
    end
  end
  local dropped = last - kept
  long.gap_at, long.gap, state.count = kept, long.gap + dropped, count - dropped
  long.dead = max(long.dead - dropped, 0)
  if kept == state.count then long.gap, long.gap_at, long.dead = 0, 0, 0 end
end

local function tail(slots, long)
  return struct.pack('>I4I4I4I4', slots, long.gap_at, long.gap, long.dead)
end

-- Groups, steps and tail for a log without refunds.
local function area(slots)
  local none = { gap_at = 0, gap = 0, dead = 0 }
  return ('\0'):rep(area_of(slots) - TAIL) .. tail(slots, none)
end

-- For a complete rewrite: the first page with live entries, the number of entries before them in
-- that page, and the count and the gap from that page on.
local function renumber(state)
  local long = state.long
  local page, at = place(state, state.head + 1)
  local shift = page * PAGE
  local last_page, last_at = place(state, state.count)
  local count = last_page * PAGE + last_at + 1 - shift
  if long.gap > 0 and state.head < long.gap_at then
    return page, at, count - long.gap, { gap_at = long.gap_at - shift, gap = long.gap, dead = long.dead }
  end
  return page, at, count, { gap_at = 0, gap = 0, dead = long.dead }
end

-- The complete string: header, entries, room and steps.
local function encode(state, header)
  local first, head, count, long = renumber(state)
  local old, parts = state.long, { header(count, head) }
  local last = place(state, state.count)
  local page, used, all = first, 0, count + long.gap
  while page <= last do
    local list, to = old.pages[page], page
    if list then
      used = min(used + PAGE, all)
      for k = #list, 2 * (used - (page - first) * PAGE) + 1, -1 do list[k] = nil end
      parts[#parts + 1] = packed(list)
    else
      while to < last and not old.pages[to + 1] do to = to + 1 end
      local most = min((to - page + 1) * PAGE, all - used)
      parts[#parts + 1] = get(state, state.first - 1 + page * PAGE * ENTRY, most * ENTRY)
      used = used + most
    end
    page = to + 1
  end
  local slots = used + floor(used / 8)
  parts[#parts + 1] = ('\0'):rep((slots - used) * ENTRY)
  local some, sums, group = {}, {}, 0
  local most = pages_of(slots)
  for number = first, first + most - 1 do
    local step = 0
    if number == first then
      step = refunded(state, first)
    elseif number <= last + 1 then
      step = steps(state, floor(number / PAGE))[number % PAGE + 1]
    end
    some[#some + 1], group = step, group + step
    if #some == PAGE or number == first + most - 1 then
      sums[#sums + 1] = { packed(some), group }
      some, group = {}, 0
    end
  end
  for i = 1, #sums do parts[#parts + 1] = struct.pack('>I7', sums[i][2]) end
  for i = 1, #sums do parts[#parts + 1] = sums[i][1] end
  parts[#parts + 1] = tail(slots, long)
  return table.concat(parts)
end

-- Updates the string in place. Returns false if it has no room.
local function amend(state, header, store)
  local long = state.long
  local page, at = place(state, state.count)
  if page * PAGE + at >= long.slots then return false end
  store('SETRANGE', state.key, 0, header(state.count, state.head))
  for number, list in pairs(long.pages) do
    for k = #list, max(2 * (long.slots - number * PAGE), 0) + 1, -1 do list[k] = nil end
    if #list > 0 then store('SETRANGE', state.key, floor(state.first - 1 + number * PAGE * ENTRY), packed(list)) end
  end
  if next(long.changed_groups) then
    local all = groups(state)
    for group in pairs(long.changed_groups) do
      -- Steps after the last page apply to no entry.
      if group >= groups_of(long.slots) then break end
      store('SETRANGE', state.key, floor(long.area + group * NUMBER), packed({ all[group + 1] }))
      local list, first = steps(state, group), group * PAGE
      for i = PAGE, pages_of(long.slots) - first + 1, -1 do list[i] = nil end
      local from = long.area + (groups_of(long.slots) + first) * NUMBER
      store('SETRANGE', state.key, floor(from), packed(list))
    end
  end
  local from = long.area + area_of(long.slots) - TAIL
  store('SETRANGE', state.key, floor(from), tail(long.slots, long))
  return true
end

-- Reads the tail. Nil if the bytes are invalid.
local function decode(state, length)
  if length < state.first - 1 + TAIL then return nil end
  local slots, gap_at, gap, dead = struct.unpack('>I4I4I4I4', get(state, length - TAIL, TAIL))
  local area_at = state.first - 1 + slots * ENTRY
  local last = state.count > gap_at and state.count + gap or state.count
  if last > slots or area_at + area_of(slots) ~= length then return nil end
  return {
    slots = slots, gap_at = gap_at, gap = gap, dead = dead, area = area_at, groups = false,
    steps = {}, sums = {}, bytes = {}, pages = {}, changed_groups = {},
  }
end

return {
  entry = entry,
  put = put,
  take = take,
  compact = compact,
  area = area,
  encode = encode,
  amend = amend,
  decode = decode,
}
