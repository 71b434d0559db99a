#!lua flags=allow-oom
-- Records that a run has succeeded: drops the entry, commits the chat, publishes the outcome, keeps the result.
--
-- KEYS[1] stream stream the route's stream
-- KEYS[2] gate   hash   state machine of the run
-- KEYS[3] due    zset   parked entry to the time it is due (ms)
-- KEYS[4] run    hash   record of the run
-- KEYS[5] feed   stream progress of the run
-- KEYS[6...] first the sessions' chat histories (list), then the targets (stream)
-- ARGV[1] group
-- ARGV[2] worker
-- ARGV[3] entry id
-- ARGV[4] token
-- ARGV[5] event id
-- ARGV[6] ms that the key stays taken
-- ARGV[7] ms that records are kept
-- ARGV[8] the result (JSON)
-- ARGV[9] what is published (JSON)
-- ARGV[10] messages that a session keeps
-- ARGV[11] ms that a session is kept
-- ARGV[12] number of sessions
-- ARGV[13...] for each session: number of changes; then for each change: append, replace, remove or clear, the
--   message's id, the message. For each target: entries it keeps and ms it lives after this one where no group reads it
--   (empty: all, for ever), number of names and values, those.
-- Returns
--   {1} done
--   {2} this token has settled before
--  {-2} the token holds nothing any more
--  {-5, i} KEYS[i] has the wrong type; nothing was written
local stream, gate, due, run, feed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, me, id, token, event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local ttl, keep, sessions = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[12])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function before(a, b)
  local am, as = a:match('^(%d+)-(%d+)$')
  local bm, bs = b:match('^(%d+)-(%d+)$')
  return tonumber(am) < tonumber(bm) or (am == bm and tonumber(as) < tonumber(bs))
end

-- Acknowledge for our group; delete unless another group still needs the entry.
local function drop()
  redis.call('ZREM', due, id)
  redis.pcall('XACK', stream, group, id)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return end
  for _, g in ipairs(groups) do
    local needs = g[2] ~= group and (before(g[8], id) or redis.call('XPENDING', stream, g[2], id, id, 1)[1])
    if needs then return end
  end
  redis.call('XDEL', stream, id)
end

-- Whether this token may settle: 1 yes, 2 it has, -2 it may not. A gate that is gone leaves it to the pending list.
local function fence()
  if redis.call('HEXISTS', gate, 'o:' .. token) == 1 then return 2 end
  local h = redis.call('HMGET', gate, 'state', 'token')
  if not h[1] then
    local p = redis.pcall('XPENDING', stream, group, id, id, 1)
    return (not p.err and p[1] and p[1][2] == me) and 1 or -2
  end
  return (h[2] == token and (h[1] == 'running' or h[1] == 'staged')) and 1 or -2
end

-- Where no group reads a target, it keeps so many entries and is gone so long after the last one.
local function bound(target, limit, life)
  if limit == '' and life == '' then return end
  if #redis.call('XINFO', 'GROUPS', target) > 0 then
    if life ~= '' then redis.call('PERSIST', target) end
    return
  end
  if limit ~= '' then redis.call('XTRIM', target, 'MAXLEN', '~', limit) end
  if life ~= '' then redis.call('PEXPIRE', target, life) end
end

-- What became of the token, for a repeated call; the last 20 are kept.
local function remember(outcome)
  local tokens = {}
  for word in (redis.call('HGET', gate, 'told') or ''):gmatch('%S+') do tokens[#tokens + 1] = word end
  tokens[#tokens + 1] = token
  while #tokens > 20 do redis.call('HDEL', gate, 'o:' .. table.remove(tokens, 1)) end
  redis.call('HSET', gate, 'o:' .. token, outcome, 'told', table.concat(tokens, ' '))
end

-- A stream takes four kilobytes, however short it is: what the feed of an ended run tells goes into the record, and the
-- stream when those who read it now have had it. Of the lines that are left out, the record keeps the last one's id.
local function fold()
  local kept, lost = {}, nil
  for _, line in ipairs(redis.call('XREVRANGE', feed, '+', '-', 'COUNT', 1200)) do
    if #kept < 200 and line[2][2] ~= 'token' then
      table.insert(kept, 1, line)
    else
      lost = lost or line[1]
    end
  end
  redis.call('HSET', run, 'feed', cjson.encode(kept))
  if lost then redis.call('HSET', run, 'feed_gap', lost) end
  redis.call('PEXPIRE', feed, 60000)
end

local settled = fence()
if settled ~= 1 then return {settled} end
for i = 6, #KEYS do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= (i < 6 + sessions and 'list' or 'stream') then return {-5, i} end
end

drop()
local a = 13
for i = 6, 5 + sessions do
  -- A line is the message's id, a line feed, the message.
  local lines, at, changes, rewrite = {}, {}, tonumber(ARGV[a]), false
  for c = a + 1, a + 3 * changes, 3 do rewrite = rewrite or ARGV[c] ~= 'append' end
  if rewrite then lines = redis.call('LRANGE', KEYS[i], 0, -1) end
  for n, line in ipairs(lines) do at[line:match('^[^\n]*')] = n end
  for c = a + 1, a + 3 * changes, 3 do
    local op, message, line = ARGV[c], ARGV[c + 1], ARGV[c + 1] .. '\n' .. ARGV[c + 2]
    if op == 'clear' then
      lines, at = {}, {}
    elseif op == 'remove' then
      if at[message] then lines[at[message]], at[message] = false, nil end
    elseif op == 'replace' and at[message] then
      lines[at[message]] = line
    else
      lines[#lines + 1] = line
      at[message] = #lines
    end
  end
  a = a + 1 + 3 * changes
  if rewrite then redis.call('DEL', KEYS[i]) end
  for _, line in ipairs(lines) do
    if line then redis.call('RPUSH', KEYS[i], line) end
  end
  redis.call('LTRIM', KEYS[i], -tonumber(ARGV[10]), -1)
  redis.call('PEXPIRE', KEYS[i], ARGV[11])
end
for i = 6 + sessions, #KEYS do
  local count, fields = tonumber(ARGV[a + 2]), {}
  for n = 1, count do fields[n] = ARGV[a + 2 + n] end
  redis.call('XADD', KEYS[i], '*', unpack(fields))
  bound(KEYS[i], ARGV[a], ARGV[a + 1])
  a = a + 3 + count
end
redis.call('HSET', gate, 'state', 'completed', 'event', event, 'entry', id, 'ended', now)
redis.call('HDEL', gate, 'due', 'cancel', 'outcome', 'checkpoint')
remember('completed')
redis.call('PEXPIRE', gate, ttl)
redis.call('HDEL', run, 'due_at', 'last_error', 'dead_letter', 'dead_letter_id')
redis.call('HSET', run, 'event_id', event, 'entry_id', id, 'status', 'completed', 'ended_at', now, 'result', ARGV[8],
  'published', ARGV[9])
redis.call('PEXPIRE', run, keep)
redis.call('XADD', feed, 'MAXLEN', '~', 1000, '*', 'type', 'completed', 'at', now, 'data',
  '{"published":' .. ARGV[9] .. '}')
fold()
return {1}
