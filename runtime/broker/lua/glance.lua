#!lua flags=no-writes
-- Says for which of many routes a worker should fetch, and when the others will have something. Hands out nothing.
--
-- KEYS[1...] four for each route: stream (stream), due (zset), leases (zset) and blocked (hash), as for the fetch
-- ARGV[1] worker, or empty: nobody's lease is looked at
-- ARGV[2...] two for each route: its group, and the id up to which it was known to be read (empty: not known)
-- Returns two numbers for each route that has something: which route it is, counted from 1, and
--   0 it is to be fetched: entries are unread or due, or the fetch has something to tell (no lease, blocked)
--   n nothing before so many ms have passed: the first parked entry is due then
--  -3 there is no such stream or group
local me = ARGV[1]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function failed(reply) return type(reply) == 'table' and reply.err end

-- Whether unread entries lie behind the last id that the group has read. Redis' own count is not known after deletions,
-- and may be too high: that costs a fetch. An entry is copied, which takes time by its size, only where the count is not
-- known and the entry is unread.
local function unread(stream, last, lag)
  if lag == 0 or redis.call('XLEN', stream) == 0 then return false end
  if lag then return true end
  local next = redis.pcall('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)
  return failed(next) or next[1]
end

-- A route that cannot be looked at is to be fetched, which says why: it must not keep the others from being seen.
local function look(stream, due, leases, blocked, group, tail)
  local groups, last, lag = redis.pcall('XINFO', 'GROUPS', stream), nil, nil
  if groups.err and redis.call('TYPE', stream).ok ~= 'none' then return 0 end
  for _, g in ipairs(groups.err and {} or groups) do
    if g[2] == group then last, lag = g[8], g[12] end
  end
  if not last then return -3 end
  if me ~= '' then
    local lease = redis.pcall('ZSCORE', leases, me)
    if not lease or failed(lease) or tonumber(lease) <= now then return 0 end
  end
  -- Where another has read since, or the group stands further back, what the worker waits for is not what is next.
  if (tail ~= '' and tail ~= last) or unread(stream, last, lag) then return 0 end
  if redis.call('EXISTS', blocked) == 1 then return 0 end
  local first = redis.pcall('ZRANGE', due, 0, 0, 'WITHSCORES')
  if failed(first) then return 0 end
  local at = tonumber(first[2])
  return at and math.max(0, at - now)
end

local answers = {}
for i = 1, #KEYS / 4 do
  local k, a = 4 * i - 3, 2 * i
  local at = look(KEYS[k], KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], ARGV[a], ARGV[a + 1])
  if at then answers[#answers + 1], answers[#answers + 2] = i, at end
end
return answers
