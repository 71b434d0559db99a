#!lua flags=allow-oom
-- Repairs what deletion and eviction broke: a page of the parked entries, and on the first page what is kept too long.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms); negative: the time it was declared dead
-- KEYS[4] obits  hash   dead worker to whom its death is blamed on
-- ARGV[1] group
-- ARGV[2] where the page starts: - or the id after "("
-- ARGV[3] entries of a page
-- Returns
--   {n, lost, next} entries given a due time again, entries found deleted, where the next page starts or empty
--  {-3} there is no such stream or group
local stream, due, leases, obits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, start, page = ARGV[1], ARGV[2], tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function before(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  return tonumber(am) < tonumber(bm) or (am == bm and tonumber(as) < tonumber(bs))
end

local parked = redis.pcall('XPENDING', stream, group, start, '+', page, '~parked')
if parked.err then
  if tostring(parked.err):find('NOGROUP', 1, true) then return {-3} end
  return parked
end

-- A day after its death even the last commands of a worker have arrived.
local function bury()
  local day = '(' .. (86400000 - now)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', leases, day, '(0', 'LIMIT', 0, 1000)) do
    redis.call('ZREM', leases, name)
    redis.call('HDEL', obits, name)
  end
end

-- What every group has settled goes. Settling deletes, unless another group needs the entry: that one may be somebody
-- else's, which deletes nothing, or may be gone by now.
local function trim()
  local groups, least = redis.call('XINFO', 'GROUPS', stream), nil
  for _, g in ipairs(groups) do
    local lowest = g[6] > 0 and redis.call('XPENDING', stream, g[2], '-', '+', 1)[1]
    local needs = lowest and lowest[1]
    if not needs then
      local ms, seq = g[8]:match('^(%d+)-(%d+)$')
      needs = ms .. '-' .. string.format('%.0f', seq + 1)
    end
    if not least or before(needs, least) then least = needs end
  end
  redis.call('XTRIM', stream, 'MINID', '=', least)
end

if start == '-' then
  bury()
  trim()
end
local mended, lost, last = 0, 0, ''
for _, entry in ipairs(parked) do
  last = entry[1]
  -- Claiming what is parked already changes nothing, reads no payload, and acknowledges what was deleted.
  if not redis.call('XCLAIM', stream, group, '~parked', 0, last, 'JUSTID')[1] then
    redis.call('XACK', stream, group, last)
    redis.call('ZREM', due, last)
    lost = lost + 1
  elseif not redis.call('ZSCORE', due, last) then
    redis.call('ZADD', due, now, last)
    mended = mended + 1
  end
end
return {mended, lost, #parked == page and '(' .. last or ''}
