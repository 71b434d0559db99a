#!lua flags=allow-oom
-- Looks over routes for workers that are gone, and says which routes need a sweep. Keeps the sweep's pulse and grace,
-- and moves nothing itself. Ends early, after the route with which it has looked at enough consumers.
--
-- KEYS[1...] three for each route: stream (stream), leases (zset) and obits (hash), as for the sweep
-- ARGV[1] ms that a lease lasts
-- ARGV[2] ms between sweeps that are a gap
-- ARGV[3] ms that a consumer without any lease may do nothing
-- ARGV[4] how many consumers are enough
-- ARGV[5...] the group of each route
-- Returns how many routes it looked over, the first ones; then those of them that are to be swept, counted from 1
local lease, gap, idle, enough = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local looked = 0
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function failed(reply) return type(reply) == 'table' and reply.err end

local function gone(leases, name, quiet)
  local score = redis.pcall('ZSCORE', leases, name)
  if failed(score) then return true end
  if not score then return quiet > idle end
  return tonumber(score) <= now
end

-- A route that cannot be looked at is to be swept, which says why: it must not keep the others from being seen.
local function needs(stream, leases, obits, group)
  local times = redis.pcall('HMGET', obits, '#pulse', '#grace')
  if failed(times) then return true end
  local pulse, grace = times[1] and tonumber(times[1]), tonumber(times[2] or 0)
  if not pulse or now - pulse > gap then
    grace = now + lease
    redis.call('HSET', obits, '#pulse', now, '#grace', grace)
  else
    redis.call('HSET', obits, '#pulse', now)
  end
  if now < grace then return false end
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, group)
  if consumers.err then
    -- Without the group there is nothing to sweep: whoever reads makes it anew.
    return not tostring(consumers.err):find('NOGROUP', 1, true) and redis.call('TYPE', stream).ok ~= 'none'
  end
  looked = looked + #consumers
  for _, c in ipairs(consumers) do
    if c[2] ~= '~parked' and gone(leases, c[2], c[6]) then return true end
  end
  return false
end

local found = {0}
for i = 1, #KEYS / 3 do
  local k = 3 * i - 2
  if needs(KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[i + 4]) then found[#found + 1] = i end
  found[1] = i
  if looked >= enough then break end
end
return found
