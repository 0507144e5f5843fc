-- Whole numbers in doubles, which are exact up to 2^53.
--
-- For whole a and b up to 2^53, floor(a / b) and ceil(a / b) are exact although a / b is rounded: a
-- fraction differs from a whole number by at least 1/b, which is more than half the distance
-- between doubles of that size. A sum or product past 2^53 is rounded, but never to less than
-- 2^53, so it still compares correctly with any smaller number.

local floor, fmod = math.floor, math.fmod

-- Timestamp::MAX, the last instant that every store can represent.
local MAX = 9007199254740991

-- `at + span`, at most MAX.
local function add(at, span)
  local sum = at + span
  if sum > MAX then return MAX end
  return sum
end

-- `later - earlier`, or zero.
local function since(later, earlier)
  if later > earlier then return later - earlier end
  return 0
end

-- Quotient and remainder of a * b / divisor, for a divisor up to 2^51. Callers divide by windows
-- and units (below 2^45) and by counts (below 2^48). A quotient past 2^53 is rounded, but not to
-- less than 2^53.
local function mul_div(a, b, divisor)
  -- Force doubles: newer Lua versions also have integers, and their products wrap around.
  a, b = a + 0.0, b + 0.0
  local product = a * b
  if product <= MAX then return floor(product / divisor), fmod(product, divisor) end
  -- Long division over the digits of b, in a base small enough for each step to be exact.
  local whole, rest = floor(a / divisor), fmod(a, divisor)
  local base = floor(4503599627370496 / divisor)
  local digits, n = {}, 0
  local left = b
  while left > 0 do
    n = n + 1
    digits[n] = fmod(left, base)
    left = floor(left / base)
  end
  local quotient, remainder = 0.0, 0.0
  for i = n, 1, -1 do
    local step = remainder * base + rest * digits[i]
    quotient = quotient * base + floor(step / divisor)
    remainder = fmod(step, divisor)
  end
  return whole * b + quotient, remainder
end

local function mul_div_ceil(a, b, divisor)
  local quotient, remainder = mul_div(a, b, divisor)
  if remainder > 0 then return quotient + 1 end
  return quotient
end

local function mul_div_floor(a, b, divisor)
  return (mul_div(a, b, divisor))
end

return {
  MAX = MAX,
  add = add,
  since = since,
  mul_div_ceil = mul_div_ceil,
  mul_div_floor = mul_div_floor,
}
