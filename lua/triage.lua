-- triage.lua: the output is bad: which op is it?
--
-- Checks in the order that eliminates most per second. Each says what it has ruled out or what it has found; a finding is an op that gives another result than
-- the reference does on the very inputs it had, so that what follows from it is not blamed. Checks that only say THAT two configurations differ decide
-- where no reference applies: graphs against eager steps, a conversation that was rewound.
local rs = require "rs"
local check = require "check"
local triage = {}

local QUESTIONS = {"What is the capital of France?", "What is 23 + 45?", "Count from 17 to 25.", "What month comes after March?", "Translate \"moon\" into German.",
                   "List three animals."}

-- Questions as the model's template puts them; as they are where none fits.
local function segments_of(questions)
  local all = {}
  for _, q in ipairs(questions) do
    local ok, s = pcall(rs.render, {{role = "user", content = q}}, {enable_thinking = false})
    for _, piece in ipairs(ok and s or {{text = q, special = false}}) do all[#all + 1] = {text = piece.text, special = piece.special} end
  end
  return all
end

-- As token ids. A model whose vocabulary cannot say them gets ids that lie apart.
local function ids_of(questions)
  local ok, r = pcall(rs.call, "encode", {segments = segments_of(questions)})
  if ok and #r.ids > 0 then return r.ids end
  local ids, vocab = {}, rs.call("info").model.vocab
  for i = 1, 16 * #questions do ids[i] = i * 37 % vocab end
  return ids
end

local function first(list, n)
  local out = {}
  for i = 1, math.min(n, #list) do out[i] = list[i] end
  return out
end

-- ---- findings ------------------------------------------------------------------------------------------------------------------------

-- "blk.3.attn.qkv_a" -> "attn.qkv_a", 3
local function place(site)
  local layer, rest = site:match("^blk%.(%d+)%.(.+)$")
  return rest or site, math.tointeger(tonumber(layer))
end

local function is_number(x) return type(x) == "number" end

-- "0-2, 5": the numbers of a set.
local function numbers(set)
  local list, out = {}, {}
  for n in pairs(set) do list[#list + 1] = n end
  table.sort(list)
  local i = 1
  while i <= #list do
    local j = i
    while list[j + 1] == list[j] + 1 do j = j + 1 end
    out[#out + 1] = i == j and tostring(list[i]) or list[i] .. "-" .. list[j]
    i = j + 1
  end
  return table.concat(out, ", ")
end

-- Entries of a replay's "guilty", put together by op: {op=, kind=, layers=, ranks=, phases=, what=, slots=, worst=, tensors=}, in program order.
local function group(entries)
  local by, list = {}, {}
  for _, e in ipairs(entries) do
    local op, layer = place(e.site)
    local g = by[op]
    if g == nil then
      g = {op = op, site = e.site, kind = e.kind, impl = e.impl, order = e.op, n = 0, layers = {}, bad_ranks = {}, phases = {}, whats = {}, slots = {}, worst = 0, tensors = e.tensors}
      by[op], list[#list + 1] = g, g
    end
    g.n = g.n + 1
    if layer then g.layers[layer] = true end
    g.phases[e.phase], g.whats[e.what] = true, true
    if not is_number(e.rel_l2) then g.broken = true else g.worst = math.max(g.worst, e.rel_l2) end
    for i, rel in ipairs(e.ranks) do
      if not is_number(rel) or rel > e.tolerances[i] then g.bad_ranks[i - 1] = true end
    end
    for _, s in ipairs(e.slots or {}) do
      if not is_number(s.rel_l2) or s.rel_l2 > e.tolerance then g.slots[s.tensor:gsub("^blk%.%d+%.", "")] = true end
    end
  end
  table.sort(list, function(a, b) return a.order < b.order end)
  return list
end

local function keys(set)
  local out = {}
  for k in pairs(set) do out[#out + 1] = k end
  table.sort(out)
  return out
end

-- A group as a sentence.
local function describe(g, ranks)
  local parts = {("%s (%s, %s) does not compute what the reference does on the same inputs"):format(g.op, g.kind, g.impl)}
  if next(g.layers) then parts[#parts + 1] = "layers " .. numbers(g.layers) end
  local n = #keys(g.bad_ranks)
  if n < ranks and n > 0 then parts[#parts + 1] = "only rank " .. numbers(g.bad_ranks) end
  if not g.phases.prompt then parts[#parts + 1] = "only when tokens are generated" end
  if g.whats.cache and not g.whats.output then parts[#parts + 1] = "in what it leaves in the cache" end
  if g.whats.choice and not g.whats.output then parts[#parts + 1] = "in its choice of experts" end
  local slots = keys(g.slots)
  if #slots > 0 then parts[#parts + 1] = "tensors " .. table.concat(slots, ", ")
  elseif g.tensors and #g.tensors > 0 then parts[#parts + 1] = "it reads " .. table.concat(g.tensors, ", ") end
  parts[#parts + 1] = g.broken and "its values are not finite, or not there" or ("off by %.3g of its norm"):format(g.worst)
  return table.concat(parts, "; ")
end

-- ---- the checks ----------------------------------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

-- A finding: what is to blame, in which op, and how it is known.
function Run:blame(op, reason, extra)
  local f = check.copy({op = op, reason = reason, check = self.current}, extra)
  self.findings[#self.findings + 1] = f
  return reason
end

local function no_method(e) return type(e) == "table" and tostring(e.msg):find("no method", 1, true) end

function Run:replay(ids, decode, config)
  local r = rs.replay{ids = ids, decode = decode, config = config}
  local ranks = (config and config.ranks) or rs.ranks()
  local groups = group(r.guilty)
  for _, g in ipairs(groups) do
    local slots = keys(g.slots)
    self:blame(g.op, describe(g, ranks), {site = g.site, slot = slots[1], slots = slots, layers = keys(g.layers), ranks = keys(g.bad_ranks), kind = g.kind, impl = g.impl,
                                         by = "reference"})
  end
  if #groups == 0 then return ("%d outputs agree with the reference on their own inputs"):format(r.compared) end
  return ("%d of %d outputs do not agree with the reference; first %s"):format(r.out_of_tolerance, r.compared, r.first.site)
end

-- The answers as they are: what a person sees, and what health says of it.
function Run:symptom()
  local list = {}
  for i, q in ipairs(self.questions) do
    list[i] = {ids = ids_of{q}, temperature = 0, max_tokens = 32}
  end
  local bad, said = 0, nil
  self.answers = rs.generate_all(list)
  for _, a in ipairs(self.answers) do
    if a.verdict ~= "ok" and a.verdict ~= rs.null and a.verdict ~= nil then
      bad = bad + 1
      said = said or ("%s: %s"):format(a.verdict, a.reason)
    end
  end
  local bad_op = rs.health().first_bad
  if bad_op ~= nil and bad_op ~= rs.null then said = (said or "") .. ("; first trouble at %s: %s"):format(bad_op.site, bad_op.reason) end
  return ("%d of %d answers look bad%s; the first is \"%s\""):format(bad, #list, said and " (" .. said .. ")" or "", (self.answers[1].text:gsub("%s+", " "):sub(1, 60)))
end

function Run:hyper()
  local r = rs.hparams_check()
  if r.model == rs.null or r.model == nil then return "no model of this shape is known: nothing to hold them against" end
  for _, f in ipairs(r.facts) do
    if not f.ok then
      self:blame("hyper-parameter " .. f.key, ("%s is %.6g, %s uses %.6g"):format(f.key, f.used, f.of, f.known), {slot = f.key, by = "table"})
    end
  end
  local missing = {}
  for _, d in ipairs(r.defaults or {}) do
    if d.matters then missing[#missing + 1] = d.key end
  end
  return ("%d of %d facts known of %s are contradicted%s"):format(r.wrong, #r.facts, r.model,
    #missing > 0 and "; not in the file, so a default is in use: " .. table.concat(missing, ", ") or "")
end

-- The loader's own account: slots whose order in the file is another than the op's.
function Run:audit()
  local a, differ = rs.audit(), 0
  for _, s in ipairs(a.slots) do differ = differ + (s.file_order_differs and 1 or 0) end
  return ("%d joined tensors lie in the file in another order than the op takes them in (harmless when joined by name); %d warning%s"):format(differ, #a.warnings,
    #a.warnings == 1 and "" or "s")
end

function Run:short() return self:replay(self.ids, 4) end

-- Two configurations that must agree to the bit, or within what their arithmetic allows.
function Run:compare(name, a, b, tolerance, decode)
  local ok, d = pcall(rs.diff, a, b, {ids = self.ids, tolerance = tolerance, decode = decode})
  if not ok then return "not possible here: " .. tostring(d) end
  if d.first == nil or d.first == rs.null then return ("%d outputs agree"):format(d.compared), nil end
  return ("%d of %d outputs differ between %s; first %s (%s)"):format(d.out_of_tolerance, d.compared, name, d.first.site, d.first.phase), d.first
end

function Run:graph()
  local said, at = self:compare("eager and graph", {mode = "eager"}, {mode = "graph"}, 0, 4)
  if at then self:blame(place(at.site), said, {site = at.site, kind = at.kind, by = "graph"}) end
  return said
end

function Run:again()
  local said, at = self:compare("two runs of the same", {}, {}, 0, 4)
  if at then self:blame(place(at.site), said .. ": it does not give the same twice, a race or memory that nobody wrote", {site = at.site, kind = at.kind, by = "repeat"}) end
  return said
end

function Run:one_rank()
  if rs.ranks() == 1 then return "there is one rank" end
  local said, at = self:compare("the present ranks and one", {}, {ranks = 1}, nil, 2)
  if at then self.hints[#self.hints + 1] = said end
  return said
end

function Run:f32()
  local said, at = self:compare("the present arithmetic and f32", {}, {patches = {matmul = "f32", cache = "f32"}}, nil, 2)
  if at then self.hints[#self.hints + 1] = said end
  return said
end

-- A conversation of these tokens that answers and then goes back and on with others: its cache after either, the second answer, and that of a fresh one.
local function go_back(ids, other)
  local session = rs.call("session.new").session
  local ok, r = pcall(function()
    rs.generate{ids = ids, session = session, max_tokens = 40, ignore_eos = true}
    local before = rs.cache_check(session)
    local again = rs.generate{ids = other, session = session, max_tokens = 32, ignore_eos = true}
    local after = rs.cache_check(session)
    local fresh = rs.generate{ids = other, max_tokens = 32, ignore_eos = true}
    return {before = before, after = after, again = again, same = table.concat(again.ids, " ") == table.concat(fresh.ids, " ")}
  end)
  pcall(rs.call, "session.drop", {session = session})
  if not ok then error(r, 0) end
  return r
end

-- The same where words must be the same: fast numerics let a row's value depend on what else is in its step, and words hang on close decisions.
local function go_back_invariant(ids, other)
  rs.call("set", {numerics = "invariant"})
  local ok, r = pcall(go_back, ids, other)
  rs.call("set", {numerics = "fast"})
  if not ok then error(r, 0) end
  return r
end

-- A conversation that goes back and on: what is in its cache, and whether it answers as a fresh one does.
function Run:rewind()
  local ids, keep = self.long, math.max(1, #self.long * 2 // 3)
  local other, words = first(ids, keep), ""
  for _, id in ipairs(self.ids) do other[#other + 1] = id end
  local ok, r = pcall(go_back, ids, other)
  if ok and not r.same and r.before.bad + r.after.bad == 0 and rs.call("info").state.numerics == "fast" then
    ok, r = pcall(go_back_invariant, ids, other)
    words = " under invariant numerics, as words may differ under fast ones"
  end
  if not ok then
    if tostring(r):find("interrupted", 1, true) then error(r, 0) end
    return "not possible here: " .. tostring(r)
  end
  local c, after = r.before, r.after
  if c.bad > 0 then
    local op = c.first.cache == "indexer" and "indexer.store" or "attn.kv_store"
    self:blame(op, ("%d of %d cache rows are not what computing them again gives; first layer %d, position %d, rank %d (%s)"):format(c.bad, c.rows, c.first.layer, c.first.pos,
      c.first.rank, c.first.cache), {slot = "cache", by = "cache"})
  elseif after.bad > 0 then
    self:blame("attn.kv_store", ("after the conversation was rewound %d of %d cache rows are wrong; first position %d"):format(after.bad, after.rows, after.first.pos), {slot = "rewind", by = "cache"})
  elseif not r.same then
    self:blame("attn.kv_store", "a conversation that was rewound answers in other words than a fresh one with the same tokens" .. words, {slot = "rewind", by = "cache"})
  end
  return ("%d rows of cache checked, %d bad; after going back to token %d, %d bad, %d tokens used again; the answer is %s a fresh conversation's%s"):format(c.rows, c.bad, keep,
    after.bad, r.again.cached_tokens or 0, r.same and "that of" or "not that of", words)
end

function Run:many() return self:replay(self.long, 6) end

-- Every check, what it costs first: {name, method, does it look for something that replay cannot see?}
local CHECKS = {
  {"symptom", "symptom"},
  {"hyper-parameters against what is known", "hyper"},
  {"slots of the loader", "audit"},
  {"each op against the reference, one question", "short"},
  {"eager against graph", "graph"},
  {"twice the same", "again"},
  {"one rank", "one_rank"},
  {"cache and rewind", "rewind"},
  {"each op against the reference, long prompt", "many"},
  {"f32", "f32"},
}

-- What is said is said by the strongest witness: the reference judges one op on its own inputs, the others only say that two runs differ.
local STRENGTH = {table = 1, reference = 2, graph = 3, cache = 4, ["repeat"] = 5}

local function verdict(self)
  table.sort(self.findings, function(a, b)
    if STRENGTH[a.by] ~= STRENGTH[b.by] then return STRENGTH[a.by] < STRENGTH[b.by] end
    return a.n < b.n
  end)
  local f = self.findings[1]
  if f ~= nil then return "guilty", f end
  for _, a in ipairs(self.answers or {}) do
    if a.verdict == "garbage" then return "unexplained", nil end
  end
  return "healthy", nil
end

--- Find the op that makes the output bad, under the configuration that is set. Options: prompts (questions; some of the shipped model's by default), all (go on
--- after the first finding), progress = function(name, seconds, text, found).
---@param opts? table
---@return table verdict ("guilty", "healthy", "unexplained"), op, site, slot, ranks, reason, findings, steps, seconds
---> local r = require("triage").run{prompts = {"What is 2 + 2?"}}; print(r.verdict)
function triage.run(opts)
  local o = check.options("triage.run", opts, {"prompts", "all", "progress", "skip"})
  local self = setmetatable({questions = o.prompts or QUESTIONS, findings = {}, hints = {}}, Run)
  check.want("triage.run", "prompts", self.questions, "table")
  if rs.model.current() == nil then error("no model is open", 2) end
  self.ids = ids_of{self.questions[1]}
  local many, i = {}, 0
  repeat -- long enough to cross the boundaries of cache blocks
    i = i + 1
    many[i] = self.questions[(i - 1) % #self.questions + 1]
    self.long = ids_of(many)
  until #self.long >= 80 and i >= #self.questions or i >= 64
  self.long = first(self.long, 160)
  local t0, steps, skip = rs.now(), {}, {}
  for _, name in ipairs(o.skip or {}) do skip[name] = true end
  for n, c in ipairs(CHECKS) do
    if not skip[c[2]] then
      local t = rs.now()
      self.current = c[1]
      local had = #self.findings
      local ok, said = pcall(self[c[2]], self)
      if not ok then
        if tostring(said):find("interrupted", 1, true) or not no_method(said) and not (type(said) == "table" and said.code) then error(said, 0) end
        said = "not possible here: " .. tostring(said)
      end
      for k = had + 1, #self.findings do self.findings[k].n = k end
      steps[#steps + 1] = {name = c[1], seconds = rs.now() - t, text = said, found = #self.findings > had}
      if o.progress then o.progress(c[1], steps[#steps].seconds, said, steps[#steps].found) end
      if #self.findings > 0 and not o.all and n >= 4 then break end
    end
  end
  local v, f = verdict(self)
  return {verdict = v, op = f and f.op, site = f and f.site, slot = f and f.slot, ranks = f and f.ranks, reason = f and f.reason, findings = self.findings, steps = steps,
          hints = self.hints, seconds = rs.now() - t0}
end

--- A progress function for triage.run that prints each piece of evidence as it comes.
---@param name string
---@param seconds number
---@param text string
---@param found boolean
function triage.tell(name, seconds, text, found) print(("  %s %5.2f s  %s: %s"):format(found and "!" or " ", seconds, name, text)) end

--- Print the result of triage.run; told: its evidence was printed by triage.tell.
---@param r table
---@param told? boolean
---> local t = require "triage"; t.report(t.run{prompts = {"What is 2 + 2?"}})
function triage.report(r, told)
  check.want("triage.report", "r", r, "table")
  if not told then print("evidence:") end
  for _, s in ipairs(told and {} or r.steps) do triage.tell(s.name, s.seconds, s.text, s.found) end
  for _, h in ipairs(r.hints) do print("  hint: " .. h) end
  if r.verdict == "guilty" then
    print(("verdict: %s%s"):format(r.op, r.site and r.site ~= r.op and " (first at " .. r.site .. ")" or ""))
    print("  " .. r.reason)
    for i = 2, #r.findings do print("  also: " .. r.findings[i].reason) end
  elseif r.verdict == "healthy" then
    print("verdict: healthy: every op does what it should")
  else
    print("verdict: unexplained: the answers look bad, yet every op does what it should; look at the prompt, its template and the sampling")
  end
  print(("%.1f s"):format(r.seconds))
end

return triage
