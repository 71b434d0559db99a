#!lua flags=no-writes
-- How a route's stream stands. Reads no more than it must of a long one.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms)
-- ARGV[1] group
-- ARGV[2] entries to count one by one, where Redis' own number cannot be trusted
-- Returns
--   {length, waiting, running, delayed, consumers, oldest} waiting: false where it cannot be known; oldest: when the
--   oldest waiting entry was sent (ms), or 0. All of them 0 where there is no stream.
local stream, due, leases = KEYS[1], KEYS[2], KEYS[3]
local group, bound = ARGV[1], tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local kind = redis.call('TYPE', stream).ok
if kind ~= 'stream' and kind ~= 'none' then return {0, 0, 0, 0, 0, 0} end

local length = redis.call('XLEN', stream)
local ready = redis.call('ZCOUNT', due, '-inf', now)
local delayed = redis.call('ZCARD', due) - ready
local consumers = redis.call('ZCOUNT', leases, '(' .. now, '+inf')
local g, several
local groups = redis.pcall('XINFO', 'GROUPS', stream)
for _, info in ipairs(groups.err and {} or groups) do
  if info[2] == group then g = {pending = info[6], last = info[8], lag = info[12]} else several = true end
end

-- How many entries there are in a range; nil where there are more than can be counted. Each is read whole, since Redis
-- counts no range by itself: so large ones are read one by one, and no more of them than `bytes` in all.
local function within(from, to, most, bytes)
  local count, page = 0, 1
  while count < most and bytes > 0 do
    local some = redis.call('XRANGE', stream, from, to, 'COUNT', page)
    count = count + #some
    if #some < page then return count end
    local largest = 1
    for _, entry in ipairs(some) do
      local size = 0
      for _, word in ipairs(entry[2]) do size = size + #word end
      bytes, largest = bytes - size, math.max(largest, size)
    end
    page = math.max(1, math.min(20, 2 * page, most - count, math.floor(bytes / largest)))
    from = '(' .. some[#some][1]
  end
end

-- Redis' lag is unknown, or too large for ever, once entries were deleted before they were read, or trimmed.
local function unread_by(group)
  if #redis.call('XRANGE', stream, '-', group.last, 'COUNT', 1) == 0 then return length end
  -- With one group, what it has not pending it has not read: two numbers that agree. They may do so by chance, and
  -- with more groups there is but one: few entries are counted all the same, so that nothing never looks like some.
  local trusted = group.lag and (several or group.lag == length - group.pending)
  local after
  if trusted then
    after = within('(' .. group.last, '+', group.lag > 100 and 20 or 120, 262144) or group.lag
  else
    after = within('(' .. group.last, '+', bound, 4194304)
  end
  if after then return after end
  local before = within('-', group.last, bound, 4194304)
  return before and length - before or group.lag or not several and math.max(1, length - group.pending)
end

local parked, unread, pending = 0, length, 0
if g then
  pending = g.pending
  for _, c in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    if c[1] == '~parked' then parked = tonumber(c[2]) end
  end
  unread = unread_by(g)
end

local oldest = 0
local first = unread ~= 0 and redis.call('XRANGE', stream, g and '(' .. g.last or '-', '+', 'COUNT', 1)[1]
if first then oldest = tonumber(first[1]:match('^%d+')) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 10)) do
  local sent = tonumber(id:match('^%d+'))
  if oldest == 0 or sent < oldest then oldest = sent end
end
return {length, unread and unread + ready, math.max(0, pending - parked), delayed, consumers, oldest}
