-- rs.lua: the module `rs`: the engine as Lua objects.
--
-- Everything here is a thin layer over the engine's own methods (docs/protocol.md), reached through rs.core. Calls wait for their reply; Ctrl-C ends a
-- wait. Times carry their unit in the name. Options that do not exist are errors.
local core = require "rs.core"
local pretty = require "pretty"

local rs = {null = core.null, core = core}

-- ---- small things -----------------------------------------------------------------------------------------------------------------

--- Values as text, one after the other; returns nothing.
function rs.show(...)
  local n = select("#", ...)
  for i = 1, n do print(pretty.text((select(i, ...)))) end
end

rs.now = core.now
rs.sleep = core.sleep

--- Raise an error unless every key of opts is in `known` (a list); returns opts or {}.
local function options(where, opts, known)
  if opts == nil then return {} end
  if type(opts) ~= "table" then error(where .. ": a table of options expected, got " .. type(opts), 3) end
  local ok = {}
  for _, k in ipairs(known) do ok[k] = true end
  for k in pairs(opts) do
    if not ok[k] then error(("%s: no option '%s'; there are: %s"):format(where, tostring(k), table.concat(known, ", ")), 3) end
  end
  return opts
end

local function want(where, name, v, kind)
  if type(v) ~= kind then error(("%s: %s: %s expected, got %s"):format(where, name, kind, type(v)), 3) end
  return v
end

-- ---- the engine -------------------------------------------------------------------------------------------------------------------

-- One engine per state: the console's own, or one made in this process when it is first needed.
local handle
local generation = 0 -- of the open model: objects of an older one are dead

local function engine()
  if handle == nil then handle = core.host_engine() or core.local_engine() end
  return handle
end

--- Any method of the protocol: rs.call("info") -> reply, blob.
function rs.call(method, args, timeout_s)
  want("rs.call", "method", method, "string")
  return engine():call(method, args, timeout_s)
end

--- Use a running engine instead: rs.connect("name"), or rs.connect() for the only one.
function rs.connect(name)
  local h = core.connect(name)
  h:call("hello", {protocol = 1, client = "lua", control = true})
  if handle ~= nil then handle:close() end
  handle = h
  generation = generation + 1
end

local listeners = {}

--- Call fn(event) for every event of a type ("token", "done", "state", "stopped", "log", ...) that a wait comes across.
function rs.on(kind, fn)
  want("rs.on", "kind", kind, "string")
  want("rs.on", "fn", fn, "function")
  listeners[kind] = listeners[kind] or {}
  table.insert(listeners[kind], fn)
end

local function next_event(timeout_s)
  local ev = engine():next(timeout_s)
  for _, fn in ipairs(ev and listeners[ev.type] or {}) do fn(ev) end
  if ev and ev.type == "lost" then error("the engine is gone", 0) end
  return ev
end

-- ---- models -----------------------------------------------------------------------------------------------------------------------

local Model = {}
Model.__index = Model
Model.__name = "rs.model"

local function check(m)
  if getmetatable(m) ~= Model then error("model expected (call with ':')", 3) end
  if m.generation ~= generation then error("model is closed", 3) end
end

function Model:__tostring()
  return self.generation == generation and ("model %s (%s)"):format(self.data.model.name or self.data.model.path, self.data.model.arch)
    or "model (closed)"
end

rs.model = {}

--- Open a model: {path=, ranks=, mode=, ctx=, patches={slot=impl}, numerics=, graph_guard=, max_seqs=, batch_tokens=}. path: the shipped one by default,
--- with 8 ranks.
function rs.model.open(opts)
  local o = options("rs.model.open", opts, {"path", "ranks", "mode", "ctx", "patches", "numerics", "graph_guard", "max_seqs", "batch_tokens"})
  local args = {}
  for k, v in pairs(o) do args[k] = v end
  if args.path == nil then
    args.path = core.default_model() or error("rs.model.open: the shipped model is not installed; give a path", 2)
    args.ranks = args.ranks or 8
  end
  local data = rs.call("open", args)
  generation = generation + 1
  return setmetatable({data = data, generation = generation}, Model)
end

--- The model that is open now, or nil.
function rs.model.current()
  local info = rs.call("info")
  if info.model == nil then return nil end
  return setmetatable({data = info, generation = generation}, Model)
end

function Model:info()
  check(self)
  self.data = rs.call("info")
  return self.data
end

function Model:close()
  if self.generation ~= generation then return end
  rs.call("close")
  generation = generation + 1
end
Model.__close = Model.close

-- ---- state ------------------------------------------------------------------------------------------------------------------------

--- rs.mode() -> "graph"|"eager"; rs.mode("eager") sets it -> took_ms.
function rs.mode(mode)
  if mode == nil then return rs.call("info").state.mode end
  return rs.call("set", {mode = mode}).took_ms
end

--- rs.ranks() -> number; rs.ranks(4) re-shards -> took_ms.
function rs.ranks(n)
  if n == nil then return rs.call("info").state.ranks end
  return rs.call("set", {ranks = n}).took_ms
end

--- rs.set{mode=, ranks=, numerics=, graph_guard=} -> the new state.
function rs.set(opts) return rs.call("set", options("rs.set", opts, {"mode", "ranks", "numerics", "graph_guard", "spec"})) end

--- What the status line shows: mode, ranks, patches, generation, running, verdict, ...
function rs.state() return rs.call("info").state end

rs.patch = {}
--- All slots with their implementations.
function rs.patch.list() return rs.call("patch.list").slots end
--- rs.patch.set("slot_order", "file"), with a site glob as third argument if wanted -> {generation=, cost=, took_ms=}.
function rs.patch.set(slot, impl, site) return rs.call("patch.set", {slot = slot, impl = impl, site = site}) end
--- Back to the generation before, or to generation n.
function rs.patch.revert(n) return rs.call("patch.revert", {to = n}) end
function rs.patch.reset() return rs.call("patch.reset") end
--- Every change: generation, slot, from, to, time_us, by, took_ms.
function rs.patch.history() return rs.call("patch.list").journal end

-- ---- generation -------------------------------------------------------------------------------------------------------------------

local SAMPLING = {temperature = "temp", top_k = "top_k", top_p = "top_p", min_p = "min_p", typical_p = "typical_p", seed = "seed",
                  max_tokens = "max_tokens", repeat_penalty = "repeat_penalty", frequency_penalty = "frequency_penalty",
                  presence_penalty = "presence_penalty", stop = "stop", ignore_eos = "ignore_eos"}
local GENERATE = {"prompt", "segments", "ids", "thinking", "session", "on_token"}
for k in pairs(SAMPLING) do GENERATE[#GENERATE + 1] = k end
table.sort(GENERATE)

--- Start an answer and do not wait: rs.submit{prompt= (special tokens are parsed), or segments=, or ids=, temperature=0, max_tokens=, ...} -> stream id.
function rs.submit(opts)
  local o = options("rs.submit", opts, GENERATE)
  local args = {temp = 0, thinking = o.thinking, session = o.session, ids = o.ids, segments = o.segments}
  if o.prompt ~= nil then args.segments = {{text = o.prompt, special = true}} end
  for name, key in pairs(SAMPLING) do
    if o[name] ~= nil then args[key] = o[name] end
  end
  return rs.call("submit", args).stream
end

--- Wait for streams (ids) -> a table id -> {text=, thinking=, tokens={ids}, stop=, verdict=, tok_per_s=, ...}.
function rs.wait(streams, on_token)
  local left, out = 0, {}
  for _, id in ipairs(streams) do
    left = left + 1
    out[id] = {ids = {}}
  end
  while left > 0 do
    local ev = next_event(600)
    local r = ev and out[ev.id]
    if r and ev.type == "token" then
      if ev.token >= 0 then r.ids[#r.ids + 1] = ev.token end
      if on_token then on_token(ev) end
    elseif r and ev.type == "done" then
      for k, v in pairs(ev.data) do r[k] = v end
      left = left - 1
    end
  end
  return out
end

--- rs.generate{prompt=, ...} -> answer; options of rs.submit, and on_token=function(event).
function rs.generate(opts)
  local o = options("rs.generate", opts, GENERATE)
  local copy = {}
  for k, v in pairs(o) do
    if k ~= "on_token" then copy[k] = v end
  end
  local id = rs.submit(copy)
  return rs.wait({id}, o.on_token)[id]
end

--- Many prompts at once -> list of answers, in order.
function rs.generate_all(list)
  local ids = {}
  for i, o in ipairs(list) do ids[i] = rs.submit(o) end
  local got, out = rs.wait(ids), {}
  for i, id in ipairs(ids) do out[i] = got[id] end
  return out
end

--- The chat template of the open model.
local function template()
  local templates = require "templates"
  local info = rs.call("info").model
  if info == nil then error("no model is open", 3) end
  return templates, templates.choose(info.template, {arch = info.arch, pre = info.pre}), info
end

--- Messages ({role=, content=}...) as segments -> segments, whether the answer begins inside a thought.
function rs.render(messages, opts)
  local templates, t, info = template()
  local o = {add_generation_prompt = true, source = info.template}
  for k, v in pairs(opts or {}) do o[k] = v end
  local segments, thinking = templates.render(t, messages, o)
  return segments, thinking
end

local Session = {}
Session.__index = Session
Session.__name = "rs.session"

--- A conversation: rs.session{system=, think=false}.
function rs.session(opts)
  local o = options("rs.session", opts, {"system", "think"})
  local s = setmetatable({messages = {}, think = o.think, id = rs.call("session.new").session, generation = generation}, Session)
  if o.system then s.messages[1] = {role = "system", content = o.system} end
  return s
end

--- s:chat("text", {temperature=, max_tokens=, on_token=}) -> answer.
function Session:chat(text, opts)
  if self.generation ~= generation then error("the conversation's model is closed", 2) end
  want("session:chat", "text", text, "string")
  local o = {}
  for k, v in pairs(opts or {}) do o[k] = v end
  self.messages[#self.messages + 1] = {role = "user", content = text}
  local segments, thinking = rs.render(self.messages, {enable_thinking = self.think})
  o.segments, o.thinking, o.session = segments, thinking, self.id
  local ok, r = pcall(rs.generate, o)
  if not ok then
    table.remove(self.messages)
    error(r, 0)
  end
  self.messages[#self.messages + 1] = {role = "assistant", content = r.text, reasoning = r.thinking}
  return r
end

--- rs.ask("question", {think=false, temperature=0, ...}) -> answer of a fresh conversation.
function rs.ask(text, opts)
  local o = {}
  for k, v in pairs(opts or {}) do o[k] = v end
  local segments, thinking = rs.render({{role = "user", content = text}}, {enable_thinking = o.think or false})
  o.think = nil
  o.segments, o.thinking = segments, thinking
  return rs.generate(o)
end

--- rs.forward{ids= or prompt=, logits="last"|"all"|"none", layers=true} -> {argmax_each=, nll=, logits=blob, layers=blob, vocab=, n=}.
function rs.forward(opts)
  local o = options("rs.forward", opts, {"ids", "prompt", "logits", "layers"})
  local args = {ids = o.ids, logits = o.logits, layers = o.layers}
  if o.prompt then args.segments = {{text = o.prompt, special = true}} end
  local r, blob = rs.call("forward", args)
  r.blob = blob
  return r
end

--- Token ids of a text; special tokens are parsed only if asked for.
function rs.encode(text, special) return rs.call("encode", {text = text, special = special or false}).ids end
function rs.decode(ids, special) return rs.call("decode", {ids = ids, special = special or false}).text end

-- ---- observation ------------------------------------------------------------------------------------------------------------------

rs.time = {}
function rs.time.stats() return rs.call("stats") end
function rs.time.allreduce() return rs.call("allreduce") end
rs.op = {}
--- Ops of the program whose site matches the glob.
function rs.op.list(glob) return rs.call("program", {site = glob or "*"}).ops end
function rs.op.ledger() return rs.call("ledger").ops end
function rs.health(stream) return rs.call("health", {stream = stream}) end
--- rs.audit{path=, ranks=, split=}; the open model by default.
function rs.audit(opts) return rs.call("audit", options("rs.audit", opts, {"path", "ranks", "split"})) end

setmetatable(rs, {__index = function(t, k)
  if k == "exp" or k == "notebook" then
    local m = require(k)
    rawset(t, k, m)
    return m
  end
end})

-- The library's other files ask for `rs` while it loads.
package.loaded["rs"] = rs
return rs
