#!lua flags=allow-oom
-- Hands entries of a route to a worker: those that are due first, up to half of them, then new ones, then due ones.
--
-- KEYS[1] stream  stream the route's stream
-- KEYS[2] due     zset   parked entry to the time it is due (ms)
-- KEYS[3] leases  zset   worker to the end of its lease (ms)
-- KEYS[4] blocked hash   why the route is blocked; absent: it is not
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] how many entries at most
-- ARGV[4] 1: if the route is blocked, take one entry to probe it with, if a probe is due
-- ARGV[5] ms between probes
-- Returns
--   {1, entries, more, tail, ms until the next is due or -1, blocked, probe} with 0 or 1 for more, blocked and probe
--  {-1} the worker has no valid lease
--  {-3} there is no such stream or group
local stream, due, leases, blocked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, me, n, probe, interval = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[5])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local lease = redis.call('ZSCORE', leases, me)
if not lease or tonumber(lease) <= now then return {-1} end

local function standing()
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil, groups end
  for _, g in ipairs(groups) do
    if g[2] == group then return {last = g[8], lag = g[12]} end
  end
end

local function before(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  return tonumber(am) < tonumber(bm) or (am == bm and tonumber(as) < tonumber(bs))
end

local g, failed = standing()
if not g then
  if failed and redis.call('TYPE', stream).ok ~= 'none' then return failed end
  return {-3}
end

local entries = {}

local function take(limit)
  if limit < 1 then return end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', due, id)
    -- Another may hold it by redelivery (the group was made anew): claiming it then would steal it.
    local p = redis.call('XPENDING', stream, group, id, id, 1)[1]
    if p and p[2] == '~parked' and redis.call('XCLAIM', stream, group, me, 0, id, 'JUSTID')[1] then
      entries[#entries + 1] = redis.call('XRANGE', stream, id, id)[1]
    end
  end
end

-- Whether there were as many new ones as that.
local function read(count)
  if count < 1 then return false end
  local got = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', count, 'STREAMS', stream, '>')
  local new = got and got[1] and got[1][2] or {}
  for _, entry in ipairs(new) do entries[#entries + 1] = entry end
  return #new == count
end

-- The id after which anything new is new, and whether unread entries lie before it. Where one is to look again anyway
-- the newest entry, which may be large, is not copied to know that: there may be some after the id that was read last.
local function tail(again)
  g = standing()
  if g.lag == 0 then return g.last, false end
  if again then return g.last, true end
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if last and before(g.last, last[1]) then return last[1], true end
  return g.last, false
end

local block = redis.call('HGET', blocked, 'next_probe')
if block then
  if probe and tonumber(block) <= now then
    take(1)
    if #entries == 0 then read(1) end
    if #entries == 1 then
      block = now + interval
      redis.call('HSET', blocked, 'next_probe', block)
    end
  end
  local last = tail()
  return {1, entries, 0, last, math.max(0, tonumber(block) - now), 1, #entries}
end

-- With an odd number the middle one goes to either by chance, so that a worker that frees one slot at a time
-- starves neither the new entries nor the retried ones.
local half = math.floor(n / 2)
if n % 2 == 1 and t[2] % 2 == 1 then half = half + 1 end
take(half)
local all = read(n - #entries)
take(n - #entries)
local last, more = tail(all)
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
local due_in = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return {1, entries, (more or due_in == 0) and 1 or 0, last, due_in, 0, 0}
