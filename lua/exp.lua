-- exp.lua: experiments: factors x prompts x repeats, interleaved; what each factor does, said in words; bisection over patches.
--
-- A configuration is a table {slot = impl, ...}; the keys mode, ranks, numerics and graph_guard are settings of the engine, everything else is a
-- patch slot. What an experiment changes is put back when it ends, also when it is stopped.
local rs = require "rs"
local check = require "check"
local options, want = check.options, check.want
local exp = {}

local SETTINGS = {mode = true, ranks = true, numerics = true, graph_guard = true}

local function sorted(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys)
  return keys
end

--- A configuration as one line: "mla=off mode=eager"; "default" when empty.
---@param config table
---@return string
---> print(rs.exp.name{mla = "off", mode = "eager"})
function exp.name(config)
  want("exp.name", "config", config, "table")
  local parts = {}
  for _, k in ipairs(sorted(config)) do parts[#parts + 1] = k .. "=" .. tostring(config[k]) end
  return #parts == 0 and "default" or table.concat(parts, " ")
end

--- Apply a configuration over what is set. Patches first in eager mode, so that an implementation that graphs refuse meets them with the mode it
--- is meant for.
---@param config table
---> rs.exp.restoring(function() rs.exp.apply{mla = "off", mode = "eager"} end)
function exp.apply(config)
  want("exp.apply", "config", config, "table")
  for _, k in ipairs(sorted(config)) do
    if SETTINGS[k] and k ~= "mode" then rs.set{[k] = config[k]} end
  end
  if config.mode then rs.set{mode = config.mode} end
  for _, k in ipairs(sorted(config)) do
    if not SETTINGS[k] then rs.patch.set(k, config[k] == true and "on" or tostring(config[k])) end
  end
end

--- Run fn(...) with the engine's present configuration put back afterwards, whatever happens, also when the operator interrupts it.
---@param fn function
---@return any ... what fn gives
---> print(rs.exp.restoring(function() rs.patch.set("mla", "expanded"); return rs.ask("Hello").verdict end), rs.state().patches.mla)
function exp.restoring(fn, ...)
  want("exp.restoring", "fn", fn, "function")
  local before = rs.state()
  return rs.core.finally(fn, function()
    rs.patch.reset()
    rs.set{mode = "eager", numerics = before.numerics, graph_guard = before.graph_guard, ranks = before.ranks}
    for slot, impl in pairs(before.patches) do
      local s, site = slot:match("^(.-)@(.+)$")
      rs.patch.set(s or slot, impl, site)
    end
    rs.set{mode = before.mode}
  end, ...)
end

local function same(a, b)
  if #a.ids ~= #b.ids then return false end
  for i = 1, #a.ids do
    if a.ids[i] ~= b.ids[i] then return false end
  end
  return true
end

-- Share of tokens, position by position, that two answers have in common.
local function agreement(a, b)
  local n, m = math.max(#a.ids, #b.ids), 0
  for i = 1, math.min(#a.ids, #b.ids) do
    if a.ids[i] == b.ids[i] then m = m + 1 end
  end
  return n == 0 and 1 or m / n
end

local function median(v)
  if #v == 0 then return nil end
  table.sort(v)
  return v[#v // 2 + 1]
end

-- All combinations of levels, the first level of every factor first.
local function arms_of(factors)
  local names, arms = sorted(factors), {{}}
  for _, name in ipairs(names) do
    local next_arms = {}
    for _, arm in ipairs(arms) do
      for _, level in ipairs(factors[name]) do
        local a = {}
        for k, v in pairs(arm) do a[k] = v end
        a[name] = level
        next_arms[#next_arms + 1] = a
      end
    end
    arms = next_arms
  end
  return arms, names
end

local function questions(prompts, o)
  local list = {}
  for i, p in ipairs(prompts) do
    local segments, thinking = rs.render({{role = "user", content = p}}, {enable_thinking = false})
    list[i] = {segments = segments, thinking = thinking, temperature = 0, max_tokens = o.max_tokens or 40}
  end
  return list
end

-- Compile and settle: the first answer in a new configuration pays for its graphs.
local function answers(config, list)
  exp.apply(config)
  local t0 = rs.now()
  local got = rs.generate_all(list)
  local tokens = 0
  for _, r in ipairs(got) do tokens = tokens + r.tokens end
  return got, tokens / (rs.now() - t0)
end

-- What a later comparison needs of answers.
local function short(got)
  local out = {}
  for p, a in ipairs(got) do out[p] = {ids = setmetatable(a.ids, rs.core.array_type), text = a.text} end
  return out
end

--- Every combination of levels on every prompt, in turns. Options: factors {slot = {levels; the first is the baseline}}, prompts, repeats (1), max_tokens (40),
--- reference (answers that are known to be right), progress = function(done, total, seconds_left), state (a table that is filled in as arms are done, and that
--- an experiment which was stopped goes on from; it can be kept as JSON).
---@param o table
---@return table result arms (config, right, agreement, tok_per_s, spread, verdicts), factors, effects, sentences, seconds
---> local r = rs.exp.run{factors = {mla = {"absorbed", "expanded"}}, prompts = {"What is 2 + 2?"}}; print(r.sentences[1])
function exp.run(o)
  options("exp.run", o, {"factors", "prompts", "repeats", "max_tokens", "reference", "progress", "state"})
  want("exp.run", "factors", want("exp.run", "o", o, "table").factors, "table")
  want("exp.run", "prompts", o.prompts, "table")
  for name, levels in pairs(o.factors) do
    want("exp.run", "factors." .. tostring(name), levels, "table")
    if #levels == 0 then error("exp.run: factors." .. tostring(name) .. " has no levels", 2) end
  end
  if o.repeats ~= nil and (math.type(o.repeats) ~= "integer" or o.repeats < 1) then error("exp.run: repeats: an integer from 1 expected", 2) end
  local arms, names = arms_of(o.factors)
  local repeats, list = o.repeats or 1, questions(o.prompts, o)
  local r = {factors = o.factors, names = names, arms = {}, prompts = o.prompts, repeats = repeats}
  local state = o.state or {}
  state.done, state.arms, state.seconds = state.done or 0, state.arms or {}, state.seconds or 0
  for i, a in ipairs(arms) do
    state.arms[i] = state.arms[i] or {speeds = {}, agreement = 0, right = true, verdicts = {}, text = ""}
    r.arms[i] = state.arms[i]
    r.arms[i].config = a
  end
  local t0, total, before = rs.now(), #arms * repeats, state.done
  exp.restoring(function()
    for at = state.done, total - 1 do
      local round, k = at // #arms + 1, at % #arms + 1
      local arm = r.arms[round % 2 == 1 and k or #arms + 1 - k] -- in turns: every other round runs backwards
      local got, speed = answers(arm.config, list)
      state.reference = o.reference or state.reference or short(got)
      table.insert(arm.speeds, speed)
      for p, a in ipairs(got) do
        if round == 1 then
          arm.agreement = arm.agreement + agreement(a, state.reference[p]) / #got
          arm.verdicts[p] = a.verdict or ""
          if p == 1 then arm.text = a.text end
        end
        arm.right = arm.right and same(a, state.reference[p])
      end
      state.done = at + 1
      if o.progress then o.progress(state.done, total, (rs.now() - t0) / (state.done - before) * (total - state.done)) end
    end
  end)
  state.seconds = state.seconds + rs.now() - t0
  for _, arm in ipairs(r.arms) do
    table.sort(arm.speeds)
    arm.tok_per_s, arm.spread = median(arm.speeds), arm.speeds[#arm.speeds] - arm.speeds[1]
  end
  r.seconds = state.seconds
  r.effects = exp.effects(r)
  r.sentences = exp.sentences(r)
  return r
end

local function find(r, config)
  for _, arm in ipairs(r.arms) do
    local all = true
    for _, n in ipairs(r.names) do all = all and arm.config[n] == config[n] end
    if all then return arm end
  end
end

local function with(config, name, level)
  local c = {}
  for k, v in pairs(config) do c[k] = v end
  c[name] = level
  return c
end

local function one(right) return right and 1 or 0 end

-- How far an arm's median speed may be off, as a fraction: half of what its repeats span.
local function unsure(arm) return arm.spread / (2 * arm.tok_per_s) end

--- Main effects and two-way interactions on the verdict (share of settings with right answers, 0..1), agreement (0..1) and speed (as a fraction): lists main
--- {factor=, level=, right=, agreement=, speed=, noise=} and pairs {a=, level_a=, b=, level_b=, right=, agreement=, speed=, noise=}. An interaction is what
--- both together do beyond the sum of what each does alone. noise: what the spread between repeats leaves uncertain of a speed; nil with one repeat.
---@param r table result of exp.run
---@return table
function exp.effects(r)
  want("exp.effects", "r", r, "table")
  local main, pairs_ = {}, {}
  for _, name in ipairs(r.names) do
    local base = r.factors[name][1]
    for l = 2, #r.factors[name] do
      local level, n, dr, da, ds, noise = r.factors[name][l], 0, 0, 0, 0, 0
      for _, arm in ipairs(r.arms) do
        if arm.config[name] == level then
          local b = find(r, with(arm.config, name, base))
          n, dr, da, ds = n + 1, dr + one(arm.right) - one(b.right), da + arm.agreement - b.agreement, ds + arm.tok_per_s / b.tok_per_s - 1
          noise = noise + unsure(arm) ^ 2 + unsure(b) ^ 2
        end
      end
      main[#main + 1] = {factor = name, level = level, right = dr / n, agreement = da / n, speed = ds / n, noise = r.repeats > 1 and math.sqrt(noise) / n or nil}
    end
  end
  for i, a in ipairs(r.names) do
    for j = i + 1, #r.names do
      local b = r.names[j]
      for la = 2, #r.factors[a] do
        for lb = 2, #r.factors[b] do
          local n, dr, d, ds, noise = 0, 0, 0, 0, 0
          for _, arm in ipairs(r.arms) do
            if arm.config[a] == r.factors[a][la] and arm.config[b] == r.factors[b][lb] then
              local a0, b0 = with(arm.config, a, r.factors[a][1]), with(arm.config, b, r.factors[b][1])
              local only_b, only_a, none = find(r, a0), find(r, b0), find(r, with(a0, b, r.factors[b][1]))
              n, d = n + 1, d + arm.agreement - only_b.agreement - only_a.agreement + none.agreement
              dr = dr + one(arm.right) - one(only_b.right) - one(only_a.right) + one(none.right)
              ds = ds + arm.tok_per_s * none.tok_per_s / (only_a.tok_per_s * only_b.tok_per_s) - 1
              for _, x in ipairs{arm, only_a, only_b, none} do noise = noise + unsure(x) ^ 2 end
            end
          end
          pairs_[#pairs_ + 1] = {a = a, level_a = r.factors[a][la], b = b, level_b = r.factors[b][lb], right = dr / n, agreement = d / n, speed = ds / n,
                                 noise = r.repeats > 1 and math.sqrt(noise) / n or nil}
        end
      end
    end
  end
  return {main = main, pairs = pairs_}
end

-- Where a level flips a right answer to a wrong one: contexts (arms at the base level that are right) split in flipped and kept.
local function flips(r, name, level)
  local flipped, kept = {}, {}
  for _, arm in ipairs(r.arms) do
    if arm.config[name] == r.factors[name][1] and arm.right then
      local other = find(r, with(arm.config, name, level))
      if other.right then kept[#kept + 1] = arm.config else flipped[#flipped + 1] = arm.config end
    end
  end
  return flipped, kept
end

-- The one setting of another factor that all flipped contexts share and no kept one has.
local function condition(r, name, flipped, kept)
  for _, other in ipairs(r.names) do
    if other ~= name then
      local level, shared = flipped[1][other], true
      for _, c in ipairs(flipped) do shared = shared and c[other] == level end
      for _, c in ipairs(kept) do shared = shared and c[other] ~= level end
      if shared then return other, level end
    end
  end
end

-- A speed that is sure to be another: more than the noise, and than 2 %. One repeat says nothing about noise, so nothing is said then.
local function sure(e) return e.noise and math.abs(e.speed) > math.max(0.02, e.noise) end

local function speed_sentences(effects, out)
  local function percent(x) return ("%.0f %% %s"):format(math.abs(x) * 100, x > 0 and "faster" or "slower") end
  for _, e in ipairs(effects.main) do
    if sure(e) then out[#out + 1] = ("%s=%s is %s (+- %.0f)"):format(e.factor, e.level, percent(e.speed), e.noise * 100) end
  end
  for _, e in ipairs(effects.pairs) do
    if sure(e) then
      out[#out + 1] = ("%s=%s and %s=%s together are %s than each alone would make them (+- %.0f)"):format(e.a, e.level_a, e.b, e.level_b, percent(e.speed), e.noise * 100)
    end
  end
end

--- What the table says, in words.
---@param r table result of exp.run
---@return string[]
function exp.sentences(r)
  want("exp.sentences", "r", r, "table")
  local out = {}
  for _, name in ipairs(r.names) do
    local matters, idle = false, {}
    for l = 2, #r.factors[name] do
      local level = r.factors[name][l]
      local flipped, kept = flips(r, name, level)
      local heals = false -- does it turn wrong answers right?
      for _, arm in ipairs(r.arms) do
        if arm.config[name] == r.factors[name][1] and not arm.right and find(r, with(arm.config, name, level)).right then heals = true end
      end
      if #flipped > 0 and #kept == 0 then
        out[#out + 1] = ("%s=%s breaks the answer wherever it was right"):format(name, level)
        matters = true
      elseif #flipped > 0 then
        local other, at = condition(r, name, flipped, kept)
        out[#out + 1] = other and ("%s=%s breaks the answer only together with %s=%s"):format(name, level, other, at)
          or ("%s=%s breaks the answer in %d of %d settings"):format(name, level, #flipped, #flipped + #kept)
        matters = true
      elseif heals then
        out[#out + 1] = ("%s=%s turns wrong answers right"):format(name, level)
        matters = true
      else
        out[#out + 1] = ("%s=%s changes no answer from right to wrong or back"):format(name, level)
        idle[#idle + 1] = level
      end
    end
    if matters and #idle > 0 then
      out[#out + 1] = ("%s between %s and %s does not matter"):format(name, r.factors[name][1], table.concat(idle, ", "))
    else
      out[#out + 1] = ("%s %s"):format(name, matters and "matters" or "does not matter")
    end
  end
  speed_sentences(exp.effects(r), out)
  return out
end

--- The table as text.
---@param r table result of exp.run
---@return string
function exp.table(r)
  want("exp.table", "r", r, "table")
  local lines, width = {}, {}
  for _, n in ipairs(r.names) do
    width[n] = #n
    for _, l in ipairs(r.factors[n]) do width[n] = math.max(width[n], #tostring(l)) end
  end
  local head = {}
  for _, n in ipairs(r.names) do head[#head + 1] = ("%-" .. width[n] .. "s"):format(n) end
  lines[1] = table.concat(head, "  ") .. "  answer  agreement    tok/s  spread"
  for _, arm in ipairs(r.arms) do
    local row = {}
    for _, n in ipairs(r.names) do row[#row + 1] = ("%-" .. width[n] .. "s"):format(tostring(arm.config[n])) end
    lines[#lines + 1] = ("%s  %-6s  %8.1f %%  %7.1f  %6.1f"):format(table.concat(row, "  "), arm.right and "right" or "WRONG", arm.agreement * 100,
      arm.tok_per_s, arm.spread)
  end
  return table.concat(lines, "\n")
end

--- Effects as text: main effects, then the interactions that are not nothing.
---@param r table result of exp.run
---@return string
function exp.effects_text(r)
  want("exp.effects_text", "r", r, "table")
  local lines = {}
  for _, e in ipairs(r.effects.main) do
    lines[#lines + 1] = ("%s=%s: right answers %+.1f points, agreement %+.1f points, speed %+.1f %%"):format(e.factor, e.level, e.right * 100, e.agreement * 100,
      e.speed * 100)
  end
  for _, e in ipairs(r.effects.pairs) do
    if math.abs(e.agreement) > 0.02 or math.abs(e.right) > 0.02 or sure(e) then
      lines[#lines + 1] = ("%s=%s x %s=%s: right answers %+.1f, agreement %+.1f points, speed %+.1f %% beyond both alone"):format(e.a, e.level_a, e.b, e.level_b,
        e.right * 100, e.agreement * 100, e.speed * 100)
    end
  end
  return table.concat(lines, "\n")
end

--- The smallest part of `patches` ({slot=impl}) that is still bad (delta debugging; interactions are found, because subsets are tried together).
--- bad(config) -> true when the configuration shows the fault. log(config, is_bad, seconds_left) is called for every probe; seconds_left is at most, should
--- nothing more be found at once. -> config, number of probes.
---@param patches table
---@param bad fun(config: table): boolean
---@param log? fun(config: table, is_bad: boolean, seconds_left: number)
---@param known? table what probes have shown, by name of the configuration; filled in, so that a bisection which was stopped goes on from it
---@return table|nil config nil: all together are not bad
---@return integer probes
---> local c = rs.exp.bisect({slot_order = "file", allreduce = "tree"}, function() return rs.state().patches.slot_order == "file" end); print(rs.exp.name(c))
function exp.bisect(patches, bad, log, known)
  want("exp.bisect", "patches", patches, "table")
  want("exp.bisect", "bad", bad, "function")
  if known ~= nil then want("exp.bisect", "known", known, "table") end
  local probes = 0
  known = known or {}
  local set, n, t0 = sorted(patches), 2, rs.now()
  -- Probes that may still come: the parts and their rests at this fineness, then at twice that, as long as there are keys to part.
  local function left()
    local sum, fine = 0, n
    while #set >= 2 do
      sum = sum + 2 * math.min(fine, #set)
      if fine >= #set then break end
      fine = fine * 2
    end
    return sum
  end
  local function test(keys)
    local c = {}
    for _, k in ipairs(keys) do c[k] = patches[k] end
    local name = exp.name(c)
    if known[name] == nil then
      probes = probes + 1
      known[name] = exp.restoring(function()
        rs.patch.reset()
        exp.apply(c)
        return bad(c)
      end) and true or false
      if log then log(c, known[name], (rs.now() - t0) / probes * left()) end
    end
    return known[name]
  end
  if not test(set) then return nil, probes end
  while #set >= 2 do
    local size, reduced = math.max(1, #set // n), false
    for at = 1, #set, size do
      local part, rest = {}, {}
      for i, k in ipairs(set) do
        local inside = i >= at and i < at + size
        table.insert(inside and part or rest, k)
      end
      if #part < #set and test(part) then
        set, n, reduced = part, 2, true
        break
      elseif #rest > 0 and #rest < #set and test(rest) then
        set, n, reduced = rest, math.max(2, n - 1), true
        break
      end
    end
    if not reduced then
      if n >= #set then break end
      n = math.min(#set, 2 * n)
    end
  end
  local c = {}
  for _, k in ipairs(set) do c[k] = patches[k] end
  return c, probes
end

return exp
