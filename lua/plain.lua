-- The plain path. Nearly every call only charges keys, and only under algorithms with two or three
-- numbers of state; its head contains a flag for that. If every key is absent or held under the
-- form that charges it, the call finishes here. The reply contains the states as they were found,
-- and the calling process derives its decisions from them with the rules of tollgate-core. This
-- block only computes how many requests are admitted.
--
-- It has no functions, because creating a function takes longer than running its body. A key that
-- is held under another form breaks the loop before the first write, and the call takes the general
-- path. The state's numbers are x, y and z:
--
--   fixed_window_counter    at, used
--   sliding_window_counter  at, previous, current
--   token_bucket            missing, at, refunded
--   leaky_bucket            level, at, refunded
--
-- A request that queues has one charge, under any of these except the counter.
if is_plain == 1 then
  local values, plain = nil, true
  if #KEYS == 1 then
    -- For a key of another type this is an error table, and its length never matches a state.
    values = { pcall('GET', KEYS[1]) }
  elseif is_cross_slot then
    -- MGET needs keys in the same slot.
    values = {}
    for i = 1, #KEYS do values[i] = pcall('GET', KEYS[i]) end
  elseif #KEYS > 1000 then -- far below Lua's limit of some 8000 arguments
    plain = false
  else
    values = call('MGET', spread(KEYS))
    local absent = {}
    for i = 1, #KEYS do
      if not values[i] then absent[#absent + 1] = KEYS[i] end
    end
    -- MGET returns the same for an absent key and for a key of another type.
    plain = #absent == 0 or call('EXISTS', spread(absent)) == 0
  end

  -- Eight facts per key in one flat table: header, since, x, y, z, the expiry if the key is to be
  -- written, the number of requests that fit, and the start of the window.
  local facts = { false, 0, 0, 0, 0, false, 0, 0 }
  local form, header, code, limit, window, unit, full
  local rows, n, from = { '' }, 0, 1
  while plain and from <= #requests do
    local kind, count, charges, first = unpack('>BI2B', requests, from)
    -- Equal requests pass while they fit under every enforced policy. So the first lap looks at all
    -- charges, and the second makes them. A single charge needs no second lap.
    local admitted, states, lap = count, '', 1
    while plain and lap <= 2 do
      from = first
      for _ = 1, charges do
        local key, form_at, flags, cost
        key, form_at, flags, cost, from = unpack('>I2I2BI7', requests, from)
        local queue = 0
        if kind == DECIDE_QUEUED then queue, from = unpack('>I7xxxxxxx', requests, from) end
        if form_at ~= form then
          form = form_at
          code, limit, window = unpack('>BI5I6', forms, form + 2)
          if code == 1 or code == 4 then
            header = forms:sub(form + 1, form + 13)
          else
            -- A bucket's limit and window are in lowest terms, which defines its scale. Refill in
            -- intervals adds whole tokens.
            unit = code == 6 and 1 or window
            header, full = forms:sub(form + 1, form + 18), unpack('>I5', forms, form + 14) * unit
          end
        end
        local at = (key - 1) * 8
        if lap == 1 then
          local x, y, z, held, start = 0, 0, 0, facts[at + 1], 0
          if held then
            x, y, z, start = facts[at + 3], facts[at + 4], facts[at + 5], facts[at + 8]
          else
            local value, since = values[key], now
            held = header
            if code == 1 then
              if value then
                plain = #value == 33
                if not plain then break end
                held, since, x, y = unpack('>c13I7I7I6', value)
              end
              start = floor(max(now, x) / window) * window
              if x <= now and (x < start or y == 0) then x, y = now, 0 end
            elseif code == 4 then
              if value then
                plain = #value == 39
                if not plain then break end
                held, since, x, y, z = unpack('>c13I7I7I6I6', value)
              end
              start = floor(max(now, x) / window) * window
              if x <= now and (y + z == 0 or x + window < start) then
                x, y, z = now, 0, 0
              elseif x < start then
                -- The charges were made in the previous window.
                x, y, z = start, z, 0
              end
            else
              if value then
                plain = #value == 46
                if not plain then break end
                held, since, x, y, z = unpack('>c18I7I7I7I7', value)
                plain = x <= 2 * full
              end
              if now > y then
                if code == 6 then
                  local intervals = floor((now - y) / window)
                  x, y = x - intervals * limit, y + intervals * window
                else
                  x, y = x - (now - y) * limit, now
                end
              end
              if x <= 0 then x, y = 0, code == 7 and now or max(y, now) end
            end
            facts[at + 1], facts[at + 2], facts[at + 3] = held, since, x
            facts[at + 4], facts[at + 5], facts[at + 6], facts[at + 8] = y, z, false, start
          end
          -- How much fits, and how much of it a request takes.
          local room, needed = 0, cost
          if code == 1 then
            room = limit - y
          elseif code == 4 then
            local weight = y * (window - (max(now, x) - start))
            -- A larger product is inexact and needs the general path.
            plain = plain and weight <= 9007199254740991
            room = limit - z - ceil(weight / window)
          else
            room, needed = full - x, cost * unit
          end
          plain = plain and held == header
          if not plain then break end
          if queue > 0 then
            -- The only charge. Each request leaves at the first instant at which it fits, after the
            -- requests before it.
            states, admitted = pack('>I7I7I7', x, y, z), 0
            while admitted < count do
              local leaves, new_x, new_y, new_start = now, x, y, start
              if code == 1 then
                if cost > limit then break end
                leaves = max(now, x)
                if y + cost > limit then
                  leaves, new_y, new_start = start + window, 0, start + window
                end
                new_x, new_y = leaves, new_y + cost
              else
                if cost * unit > full then break end
                local over, intervals = x - full + cost * unit, 0
                leaves = max(now, y)
                if over > 0 then
                  leaves = y + (code == 6 and ceil(over / limit) * window or ceil(over / limit))
                end
                if code == 6 then
                  intervals = floor((leaves - y) / window)
                  new_x, new_y = x - intervals * limit, y + intervals * window
                else
                  new_x, new_y = x - (leaves - y) * limit, leaves
                end
                if new_x <= 0 then new_x, new_y = 0, leaves end
                new_x = new_x + cost * unit
              end
              -- The general path knows the end of time.
              plain = leaves < 9007199254740991
              if not plain or leaves - now >= queue then break end
              x, y, start, admitted = new_x, new_y, new_start, admitted + 1
            end
            if admitted > 0 then
              facts[at + 3], facts[at + 4], facts[at + 8] = x, y, start
              facts[at + 6] = code == 1 and start + window
                or y + (code == 6 and ceil(x / limit) * window or ceil(x / limit))
            end
            lap = 2
            break
          end
          local fits = count
          if cost > 0 and count * needed > room then fits = max(floor(room / needed), 0) end
          if flags == ENFORCED and fits < admitted then admitted = fits end
          facts[at + 7] = fits
          states = charges == 1 and pack('>I7I7I7', x, y, z) or states .. pack('>I7I7I7', x, y, z)
        end
        if lap == 2 or charges == 1 then
          -- A shadow policy is charged for as many of the admitted requests as fit.
          local fits = facts[at + 7]
          local units = (fits < admitted and fits or admitted) * cost
          if units > 0 then
            if code == 1 then
              facts[at + 3], facts[at + 4] = max(facts[at + 3], now), facts[at + 4] + units
              facts[at + 6] = facts[at + 8] + window
            elseif code == 4 then
              facts[at + 3], facts[at + 5] = max(facts[at + 3], now), facts[at + 5] + units
              facts[at + 6] = facts[at + 8] + 2 * window
            else
              local missing = facts[at + 3] + units * unit
              facts[at + 3] = missing
              facts[at + 6] = facts[at + 4]
                + (code == 6 and ceil(missing / limit) * window or ceil(missing / limit))
            end
          end
        end
      end
      lap = admitted > 0 and charges > 1 and lap + 1 or 3
    end
    n = n + 1
    rows[n] = pack('>I2', admitted) .. states
  end

  if plain then
    -- If the memory is full, Redis refuses a script's first write, and never a later write.
    local first, kind = true, STATES
    -- Redis formats a number slowly, so a key that expires in the same second as the key before it
    -- shares the text.
    local second, shown
    for i = 1, #KEYS do
      local at = i * 8 - 8
      local expires = kind == STATES and facts[at + 6]
      if expires then
        local held, value = facts[at + 1], nil
        if #held == 18 then
          value =
            pack('>c18I7I7I7I7', held, facts[at + 2], facts[at + 3], facts[at + 4], facts[at + 5])
        elseif held:byte(2) == 1 then
          value = pack('>c13I7I7I6', held, facts[at + 2], facts[at + 3], facts[at + 4])
        else
          value =
            pack('>c13I7I7I6I6', held, facts[at + 2], facts[at + 3], facts[at + 4], facts[at + 5])
        end
        if expires > 9007199254740991 then expires = 9007199254740991 end
        expires = floor(expires / 1000000) + SLACK
        if expires ~= second then second, shown = expires, format('%d', expires) end
        local done
        if redis.REDIS_VERSION_NUM then
          done = (first and pcall or call)('SET', KEYS[i], value, 'EXAT', shown)
        else
          done = (first and pcall or call)('SET', KEYS[i], value)
          if not done.err then call('PEXPIREAT', KEYS[i], shown .. '000') end
        end
        if done.err then
          -- Raise any other error by running the command without pcall.
          if not done.err:find('OOM', 1, true) then call('SET', KEYS[i], value) end
          kind = UNWRITTEN
        end
        first = false
      end
    end
    return pack('>c8I7B', nonce, now, kind) .. (n == 1 and rows[1] or table.concat(rows))
  end
end
