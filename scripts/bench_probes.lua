-- bench_probes.lua ROUNDS TOKENS FIRST: decode speed of the engines "with" and "without", in turns: a line "MODE WITH WITHOUT" for every round. FIRST opens
-- its model first. scripts/bench-probes starts them and reads this.
local rounds, tokens = tonumber(arg[1]), tonumber(arg[2])

local now -- the one that is connected

local function reach(name)
  if now == name then return end
  local last
  for _ = 1, 200 do
    local ok, why = pcall(rs.connect, name)
    now = ok and name or nil
    if ok then return end
    last = why
    rs.sleep(0.05)
  end
  error(last, 0)
end

-- Tokens per second by the median time between two tokens: what else the machine does makes a few of them long.
local function speed(name, mode, n)
  reach(name)
  rs.mode(mode)
  local gaps, last = {}, nil
  rs.generate{prompt = "Once upon a time", max_tokens = n, ignore_eos = true, on_token = function(ev)
    if last then gaps[#gaps + 1] = ev.time_us - last end
    last = ev.time_us
  end}
  table.sort(gaps)
  return 1e6 / gaps[#gaps // 2 + 1]
end

for _, name in ipairs(arg[3] == "without" and {"without", "with"} or {"with", "without"}) do
  reach(name)
  rs.model.open{ranks = 1}
  for _, mode in ipairs{"graph", "eager"} do speed(name, mode, tokens) end
end
for round = 1, rounds do
  for _, mode in ipairs{"graph", "eager"} do
    local got = {}
    for i = 1, 2 do
      local name = (i + round) % 2 == 0 and "with" or "without" -- who is first takes turns
      got[name] = speed(name, mode, tokens)
    end
    print(("%s %.3f %.3f"):format(mode, got.with, got.without))
  end
end
