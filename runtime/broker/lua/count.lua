#!lua flags=no-writes
-- How a route's stream stands. Reads no more than it must of a long one.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms)
-- ARGV[1] group
-- ARGV[2] unread entries to count one by one, where Redis' own number cannot be right
-- Returns
--   {length, waiting, running, delayed, consumers, oldest} oldest: when the oldest waiting entry was sent (ms), or 0
local stream, due, leases = KEYS[1], KEYS[2], KEYS[3]
local group, bound = ARGV[1], tonumber(ARGV[2])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local length = redis.call('XLEN', stream)
local ready = redis.call('ZCOUNT', due, '-inf', now)
local delayed = redis.call('ZCARD', due) - ready
local consumers = redis.call('ZCOUNT', leases, '(' .. now, '+inf')
local g
local groups = redis.pcall('XINFO', 'GROUPS', stream)
for _, info in ipairs(groups.err and {} or groups) do
  if info[2] == group then g = {pending = info[6], last = info[8], lag = info[12]} end
end

local parked, unread, pending = 0, length, 0
if g then
  pending = g.pending
  for _, c in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    if c[1] == '~parked' then parked = tonumber(c[2]) end
  end
  -- With one group, what it has not pending it has not read. Redis' lag says the same unless entries were deleted or
  -- trimmed; then, and with more groups, count.
  unread = g.lag
  if not unread or (#groups == 1 and unread ~= length - pending) or unread > length then
    unread = 0
    local from = '(' .. g.last
    while unread < bound do
      local some = redis.call('XRANGE', stream, from, '+', 'COUNT', 20)
      unread = unread + #some
      if #some < 20 then break end
      from = '(' .. some[20][1]
    end
    local most = math.min(g.lag or length, length - (#groups > 1 and 0 or pending))
    if unread >= bound then unread = math.max(unread, most) end
  end
end

local oldest = 0
local first = unread > 0 and redis.call('XRANGE', stream, g and '(' .. g.last or '-', '+', 'COUNT', 1)[1]
if first then oldest = tonumber(first[1]:match('^%d+')) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, 10)) do
  local sent = tonumber(id:match('^%d+'))
  if oldest == 0 or sent < oldest then oldest = sent end
end
return {length, unread + ready, math.max(0, pending - parked), delayed, consumers, oldest}
