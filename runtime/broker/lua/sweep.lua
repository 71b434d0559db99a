#!lua flags=allow-oom
-- Hands on the entries of workers that are gone: their lease has ended, or the caller has seen them end.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] due    zset   parked entry to the time it is due (ms)
-- KEYS[3] leases zset   worker to the end of its lease (ms); negative: the time it was declared dead
-- KEYS[4] obits  hash   dead worker to whom its death is blamed on; #pulse, #grace: times of the sweep (ms)
-- ARGV[1] group
-- ARGV[2] entries of a page
-- ARGV[3] ms that a lease lasts
-- ARGV[4] ms between sweeps that are a gap
-- ARGV[5] ms that a consumer without any lease may do nothing
-- ARGV[6] deliveries after which an entry is poison
-- ARGV[7] the worker that has ended, or empty: look for those whose lease has
-- ARGV[8] whom that death is blamed on: * for all, else its tokens, each between blanks
-- Returns
--   {1, moved, removed, poison} entries parked, consumers deleted, ids of entries parked without a due time
--   {2} nothing was done: after a gap everybody has a lease's time to renew
--  {-3} there is no such stream or group
local stream, due, leases, obits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, page, lease, gap = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local idle, limit, dead, blame = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

if dead ~= '' then
  redis.call('ZADD', leases, -now, dead)
  redis.call('HSET', obits, dead, blame)
else
  local pulse = redis.call('HGET', obits, '#pulse')
  redis.call('HSET', obits, '#pulse', now)
  if not pulse or now - pulse > gap then redis.call('HSET', obits, '#grace', now + lease) end
  if now < tonumber(redis.call('HGET', obits, '#grace') or 0) then return {2} end
end

local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, group)
if consumers.err then
  if tostring(consumers.err):find('NOGROUP', 1, true) or redis.call('TYPE', stream).ok == 'none' then return {-3} end
  return consumers
end

local function gone(name, quiet)
  local score = tonumber(redis.call('ZSCORE', leases, name))
  if not score then return quiet > idle end
  if score >= 0 and score <= now then redis.call('ZADD', leases, -now, name) end
  return score <= now
end

local moved, removed, poison = 0, 0, {}
for _, c in ipairs(consumers) do
  local name, pending, quiet = c[2], c[4], c[6]
  if name ~= '~parked' and (dead == '' or dead == name) and moved < page and gone(name, quiet) then
    local held = pending > 0 and redis.call('XPENDING', stream, group, '-', '+', page - moved, name) or {}
    -- Many ids to a command: those that have been delivered as often, which are nearly all.
    local alike, times = {}, {}
    for _, entry in ipairs(held) do
      local deliveries = entry[4] + 1
      if not alike[deliveries] then
        alike[deliveries] = {}
        times[#times + 1] = deliveries
      end
      table.insert(alike[deliveries], entry[1])
    end
    for _, deliveries in ipairs(times) do
      local ids = alike[deliveries]
      moved = moved + #ids
      ids[#ids + 1], ids[#ids + 2], ids[#ids + 3] = 'RETRYCOUNT', deliveries, 'JUSTID'
      local later = {}
      for _, id in ipairs(redis.call('XCLAIM', stream, group, '~parked', 0, unpack(ids))) do
        if deliveries > limit then
          poison[#poison + 1] = id
        else
          later[#later + 1], later[#later + 2] = now, id
        end
      end
      if #later > 0 then redis.call('ZADD', due, unpack(later)) end
    end
    -- In the same script as the last look: what were read in between would be thrown away with the consumer.
    if pending == #held then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
      removed = removed + 1
    end
  end
end
return {1, moved, removed, poison}
