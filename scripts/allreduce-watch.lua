-- allreduce-watch.lua: who comes late to the all-reduces? A rank that arrives late makes the others wait and hardly waits itself.
--
--   rankscope scripts/allreduce-watch.lua [ENGINE | --demo] [--every SECONDS] [--for SECONDS] [--above US]
--
-- Watches a running engine (the only one, or the one of that name); --demo: the shipped model in this process, with work to do. An alert is a line that begins
-- with "late:". --above: how much less than the median a rank must wait to be called late; 20 microseconds unless told otherwise.
local opt, rest = require "args".read{["--demo"] = "flag", ["--every"] = "real", ["--for"] = "real", ["--above"] = "real"}
local name, demo, every, total, above = rest[1], opt.demo, opt.every or 1, opt["for"] or 10, opt.above or 20

if demo then rs.model.open{} else rs.connect(name) end
if rs.model.current() == nil then error("no model is open there", 0) end

-- Mean waits since the last look, by rank.
local before = {}
local function waits()
  local out, n = {}, 0
  local a = rs.time.allreduce()
  for _, r in ipairs(a.ranks) do
    local b = before[r.rank] or {count = 0, wait = 0}
    local sum = (r.wait_mean_us or 0) * r.count -- not known of a rank that has not waited yet
    if r.wait_mean_us and r.count > b.count then
      out[#out + 1] = {rank = r.rank, wait = (sum - b.wait) / (r.count - b.count)}
      n = math.max(n, r.count - b.count)
    end
    before[r.rank] = {count = r.count, wait = sum}
  end
  return out, n, a
end

local function median(list)
  local v = {}
  for k, w in ipairs(list) do v[k] = w.wait end
  table.sort(v)
  return v[#v // 2 + 1]
end

waits()
local late, looks, until_s = {}, 0, rs.now() + total
while rs.now() < until_s do
  if demo then rs.generate{prompt = "Once upon a time", max_tokens = 64, ignore_eos = true} else rs.sleep(every) end
  local list, n, a = waits()
  if #list > 1 then
    looks = looks + 1
    local m, parts = median(list), {}
    for k, w in ipairs(list) do parts[k] = ("%d:%.0f"):format(w.rank, w.wait) end
    print(("%6d all-reduces%s, mean wait in us by rank %s"):format(n, a.simulated and " (simulated)" or "", table.concat(parts, " ")))
    for _, w in ipairs(list) do
      if m - w.wait > above and w.wait < m / 4 then
        late[w.rank] = (late[w.rank] or 0) + 1
        print(("late: rank %d waits %.0f us where others wait %.0f: the others wait for it"):format(w.rank, w.wait, m))
      end
    end
  end
end
local any = false
for rank, k in pairs(late) do
  any = true
  print(("rank %d was late in %d of %d looks"):format(rank, k, looks))
end
if not any then print(("no rank was late in %d looks"):format(looks)) end
