-- rs.lua: the module `rs`: the engine as Lua objects.
--
-- Everything here is a thin layer over the engine's own methods (docs/protocol.md), reached through rs.core. Calls wait for their reply; Ctrl-C ends a
-- wait. Times carry their unit in the name. Options that do not exist are errors.
local core = require "rs.core"
local pretty = require "pretty"
local check_args = require "check"
local options, want, copy = check_args.options, check_args.want, check_args.copy

local rs = {null = core.null, core = core}

-- ---- small things -----------------------------------------------------------------------------------------------------------------

--- Print values as text, one after the other.
---@param ... any
---> rs.show({1, 2, {x = "y"}}, rs.state().mode)
function rs.show(...)
  local n = select("#", ...)
  for i = 1, n do print(pretty.text((select(i, ...)))) end
end

--- Seconds of a monotonic clock.
---@return number
---> print(rs.now() > 0)
function rs.now() return core.now() end

--- Wait; Ctrl-C ends it.
---@param seconds number
---> rs.sleep(0.01)
function rs.sleep(seconds)
  want("rs.sleep", "seconds", seconds, "number")
  core.sleep(seconds)
end

-- ---- the engine -------------------------------------------------------------------------------------------------------------------

-- One engine per state: the console's own, or one made in this process when it is first needed.
local handle
local generation = 0 -- of the open model: objects of an older one are dead
local listeners, finished = {}, {} -- by type of event; streams that were waited for
local wanted = {}  -- by stream: the list that its events go to, for the task that waits for it
local backlog, backlog_first, backlog_last = {}, 1, 0 -- events that nobody has asked for yet
local lost = false

local function engine()
  if handle == nil then handle = core.host_engine() or core.local_engine() end
  return handle
end

--- Any method of the protocol (docs/protocol.md) -> reply, blob.
---@param method string
---@param args? table
---@param timeout_s? number
---@return table reply
---@return string|nil blob
---> print(rs.call("info").backend)
function rs.call(method, args, timeout_s)
  want("rs.call", "method", method, "string")
  if args ~= nil then want("rs.call", "args", args, "table") end
  if timeout_s ~= nil then want("rs.call", "timeout_s", timeout_s, "number") end
  return engine():call(method, args, timeout_s)
end

--- Use a running engine instead of one in this process: by its name, or the only one.
---@param name? string
function rs.connect(name)
  local h = core.connect(name)
  h:call("hello", {protocol = 1, client = "lua", control = true})
  if handle ~= nil then handle:close() end
  handle, finished, wanted, lost = h, {}, {}, false -- the ids of streams are the engine's
  backlog, backlog_first, backlog_last = {}, 1, 0
  generation = generation + 1
end

-- The console has another engine now: ids begin anew there, and what belonged to the old one is dead.
function core.restarted()
  handle, finished, wanted, lost = nil, {}, {}, false
  backlog, backlog_first, backlog_last = {}, 1, 0
  generation = generation + 1
end

--- Call fn(event) for every event of a type ("token", "done", "state", "stopped", "log", ...) that a wait comes across. It runs as a task of its own: it may
--- wait, and then goes on beside who waited first. Events have type, id (the stream's) and time_us; tokens have token (-1: text without one), text and
--- thinking, the others data: what docs/protocol.md says of them (done: event.data.stop). In the console nobody waits while you chat; a task that does so is
--- rs.spawn(function() while true do rs.next_event() end end).
---@param kind string
---@param fn fun(event: table)
---> local n = 0; rs.on("token", function() n = n + 1 end); rs.ask("Hello", {max_tokens = 4}); print(n)
function rs.on(kind, fn)
  want("rs.on", "kind", kind, "string")
  want("rs.on", "fn", fn, "function")
  listeners[kind] = listeners[kind] or {}
  table.insert(listeners[kind], fn)
end

-- Whoever waits reads for all: an event goes to who wants it, else it is kept.
local function route(ev)
  for _, fn in ipairs(listeners[ev.type] or {}) do core.spawn(fn, ev) end
  if ev.type == "lost" then lost = true end
  local list = (ev.type == "token" or ev.type == "done") and wanted[ev.id]
  if list then
    list[#list + 1] = ev
    return
  end
  backlog_last = backlog_last + 1
  backlog[backlog_last] = ev
  if backlog_last - backlog_first >= 65536 then
    backlog[backlog_first] = nil
    backlog_first = backlog_first + 1
  end
end

-- Read once, waiting for it until then; returns also when another task has read.
local function pump(until_s)
  if lost then error("the engine is gone", 0) end
  local ev = engine():next(math.max(0, until_s - core.now()))
  if ev then route(ev) end
end

--- The next event of the engine that nobody waits for otherwise, or nil when none came in time.
---@param timeout_s? number
---@return table|nil
---> print(rs.next_event(0.01))
function rs.next_event(timeout_s)
  if timeout_s ~= nil then want("rs.next_event", "timeout_s", timeout_s, "number") end
  local until_s = core.now() + (timeout_s or 600)
  repeat
    if backlog_first <= backlog_last then
      local ev = backlog[backlog_first]
      backlog[backlog_first] = nil
      backlog_first = backlog_first + 1
      return ev
    end
    pump(until_s)
  until core.now() >= until_s and backlog_first > backlog_last
  return nil
end

-- ---- tasks ------------------------------------------------------------------------------------------------------------------------

---@class rs.task
local Task = {}
Task.__index = Task
Task.__name = "rs.task"
Task.__tostring = function(t) return ("task %d (%s)"):format(t.id or 0, t.done and (t.error and "failed" or "done") or "running") end

--- Run fn(...) as a task beside this one: it runs until it waits, then both take turns wherever one waits. Scripts, lines at the prompt and handlers are
--- tasks too.
---@param fn function
---@return rs.task
---> local t = rs.spawn(function(q) return rs.ask(q, {max_tokens = 4}).text end, "Hello"); print(t:wait())
function rs.spawn(fn, ...)
  want("rs.spawn", "fn", fn, "function")
  local t = setmetatable({done = false}, Task)
  t.id = core.spawn(function(...)
    local r = table.pack(pcall(fn, ...))
    t.done = true
    if r[1] then t.results = table.move(r, 2, r.n, 1, {n = r.n - 1}) else t.error = r[2] end
    if t.error and not t.waited then error(t.error, 0) end -- nobody else will say it
  end, ...)
  return t
end

--- Wait for its end -> what its function gave; what it raised is raised.
---@param timeout_s? number
---@return any ...
---> print(rs.spawn(function() rs.sleep(0.01) return 1, 2 end):wait())
function Task:wait(timeout_s)
  if getmetatable(self) ~= Task then error("task:wait: a task expected (call with ':')", 2) end
  if timeout_s ~= nil then want("task:wait", "timeout_s", timeout_s, "number") end
  local until_s = core.now() + (timeout_s or 1e9)
  self.waited = true
  while not self.done and core.running(self.id) do
    if core.now() >= until_s then error("task:wait: it has not ended in time", 2) end
    core.pause(math.min(1, until_s - core.now()))
  end
  if self.error then error(self.error, 0) end
  if not self.done then error("the task was cancelled", 2) end
  return table.unpack(self.results, 1, self.results.n)
end

--- End it: where it waits or runs an error is raised in it.
---> local t = rs.spawn(rs.sleep, 100); t:cancel()
function Task:cancel()
  if getmetatable(self) ~= Task then error("task:cancel: a task expected (call with ':')", 2) end
  self.waited = true
  core.cancel(self.id)
end

-- ---- models -----------------------------------------------------------------------------------------------------------------------

---@class rs.model
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

--- Open a model. Options: path (the shipped one by default, with 8 ranks), ranks, mode, ctx, patches {slot = impl}, numerics, graph_guard, max_seqs,
--- batch_tokens.
---@param opts? table
---@return rs.model
---> local m = rs.model.open{ranks = 4}; print(m)
function rs.model.open(opts)
  local o = options("rs.model.open", opts, {"path", "ranks", "mode", "ctx", "patches", "numerics", "graph_guard", "max_seqs", "batch_tokens"})
  local args = copy(o)
  if args.path == nil then
    args.path = core.default_model() or error("rs.model.open: the shipped model is not installed; give a path", 2)
    args.ranks = args.ranks or 8
  end
  args.path = core.path(args.path)
  local data = rs.call("open", args)
  generation = generation + 1
  return setmetatable({data = data, generation = generation}, Model)
end

--- The model that is open now, or nil.
---@return rs.model|nil
---> print(rs.model.current())
function rs.model.current()
  local info = rs.call("info")
  if info.model == nil then return nil end
  return setmetatable({data = info, generation = generation}, Model)
end

--- What method "info" says, asked again.
---@return table
---> print(rs.model.current():info().model.layers)
function Model:info()
  check(self)
  self.data = rs.call("info")
  return self.data
end

--- Take tensors of the loaded model from another file, between two steps: glob over tensor names, path of a model file. Types may differ, shapes may not.
--- rs.patch.revert() takes it back. Without a path: what the tensors are now.
---@param glob? string
---@param path? string
---@return table with a path: donor, generation, cost, took_ms, resharded, tensors; without: tensors, donors. Tensors have name, type, file_type, from, bytes, same
---> local m = rs.model.open{ranks = 2}; m:weights("blk.1.*", m:info().model.path); print(m:weights("blk.1.*").tensors[1].from); rs.patch.revert()
function Model:weights(glob, path)
  check(self)
  if glob ~= nil then want("model:weights", "glob", glob, "string") end
  if path == nil then return rs.call("weights.list", {tensors = glob}) end
  want("model:weights", "path", path, "string")
  return rs.call("weights.load", {tensors = glob or "*", path = core.path(path)})
end

--- Close it; objects that belong to it are errors from then on.
function Model:close()
  if self.generation ~= generation then return end
  rs.call("close")
  generation = generation + 1
end
Model.__close = Model.close

-- ---- state ------------------------------------------------------------------------------------------------------------------------

--- The mode, "graph" or "eager"; with an argument, set it -> took_ms.
---@param mode? string
---@return string|number
---> print(rs.mode("eager"), rs.mode())
function rs.mode(mode)
  if mode == nil then return rs.call("info").state.mode end
  return rs.call("set", {mode = mode}).took_ms
end

--- The number of ranks; with an argument, shard the loaded model anew -> took_ms.
---@param n? integer
---@return number
---> print(rs.ranks())
function rs.ranks(n)
  if n == nil then return rs.call("info").state.ranks end
  return rs.call("set", {ranks = n}).took_ms
end

--- Settings: mode, ranks, numerics, graph_guard, spec -> the new state.
---@param opts table
---@return table
---> print(rs.set{mode = "graph"}.mode)
function rs.set(opts) return rs.call("set", options("rs.set", opts, {"mode", "ranks", "numerics", "graph_guard", "spec"})) end

--- What the status line shows: mode, ranks, patches, generation, running, verdict, ...
---@return table
---> print(rs.state().ranks)
function rs.state() return rs.call("info").state end

rs.patch = {}
--- All slots with their implementations.
---@return table
---> print(rs.patch.list()[1].slot)
function rs.patch.list() return rs.call("patch.list").slots end
--- Choose an implementation, for all sites or those of a glob -> {generation=, cost=, took_ms=}.
---@param slot string
---@param impl string
---@param site? string
---@return table
---> print(rs.patch.set("mla", "expanded").cost); rs.patch.revert()
function rs.patch.set(slot, impl, site) return rs.call("patch.set", {slot = slot, impl = impl, site = site}) end
--- Back to the generation before, or to generation n.
---@param n? integer
---@return table
function rs.patch.revert(n) return rs.call("patch.revert", {to = n}) end
--- All slots to their defaults.
---> rs.patch.reset()
function rs.patch.reset() return rs.call("patch.reset") end
--- Load a patch from a file in C (.c), Lua (.lua, see "Patches in Lua") or CUDA C (.cu): compiled and tested in a process of its own, then known to the
--- slot "user". Options: activate (use it at once), site (a glob; where).
---@param path string
---@param opts? table
---@return table name, kind, help, active, selftest_worst, staged_ms
---> local file = rs.core.default_model():gsub("models/[^/]*$", "scripts/patches/rmsnorm.lua")
---> local p = rs.patch.load(file, {activate = true, site = "blk.1.*"}); print(p.name, p.selftest_worst); rs.patch.revert()
function rs.patch.load(path, opts)
  want("rs.patch.load", "path", path, "string")
  local o = options("rs.patch.load", opts, {"activate", "site"})
  return rs.call("patch.load", {path = core.path(path), activate = o.activate, site = o.site})
end
--- Compare a loaded patch with what it would replace, in the steps of whatever runs from now on; what is used stays what it is. Options: site (a glob),
--- steps (64). At the end a log event says what was found.
---@param name string
---@param opts? table
---@return table report as rs.patch.shadowed gives it
---> rs.patch.shadow("rmsnorm-lua", {steps = 4}); rs.ask("Hello"); print(rs.patch.shadowed().worst)
function rs.patch.shadow(name, opts)
  want("rs.patch.shadow", "name", name, "string")
  local o = options("rs.patch.shadow", opts, {"site", "steps"})
  return rs.call("patch.live", {impl = name, site = o.site, steps = o.steps}).shadow
end
--- What the shadow that runs, or the last one, has found, or nil: impl, site, running, ended, steps, compared, worst (relative L2), worst_site, mean, ops ...
---@return table|nil
---> print(rs.patch.shadowed() and rs.patch.shadowed().compared)
function rs.patch.shadowed()
  local s = rs.call("patch.live.get").shadow
  return type(s) == "table" and s or nil
end
--- Put the patch that was shadowed in where it was shadowed, unless it was further apart than `limit` (relative L2).
---@param limit? number
---@return table generation, cost, took_ms, impl, site, worst
---> rs.patch.shadow("rmsnorm-lua", {steps = 2}); rs.ask("Hello"); print(rs.patch.promote(1e-5).impl); rs.patch.revert()
function rs.patch.promote(limit) return rs.call("patch.promote", {limit = limit}) end
--- Every change: generation, slot, from, to, time_us, by, took_ms.
---@return table
---> print(#rs.patch.history())
function rs.patch.history() return rs.call("patch.list").journal end

-- ---- generation -------------------------------------------------------------------------------------------------------------------

local SAMPLING = {temperature = "temp", top_k = "top_k", top_p = "top_p", min_p = "min_p", typical_p = "typical_p", seed = "seed",
                  max_tokens = "max_tokens", repeat_penalty = "repeat_penalty", frequency_penalty = "frequency_penalty",
                  presence_penalty = "presence_penalty", stop = "stop", ignore_eos = "ignore_eos"}
local GENERATE = {"prompt", "segments", "ids", "thinking", "session", "on_token"}
for k in pairs(SAMPLING) do GENERATE[#GENERATE + 1] = k end
table.sort(GENERATE)

--- Start an answer and do not wait. Options: prompt (special tokens are parsed) or segments or ids, temperature (0), max_tokens, top_k, top_p, min_p,
--- typical_p, seed, repeat_penalty, frequency_penalty, presence_penalty, stop, ignore_eos, session, thinking.
---@param opts table
---@return integer stream
---> local id = rs.submit{prompt = "Hello", max_tokens = 4}; print(rs.wait{id}[id].text)
function rs.submit(opts)
  local o = options("rs.submit", opts, GENERATE)
  local args = {temp = 0, thinking = o.thinking, session = o.session, ids = o.ids, segments = o.segments}
  if o.prompt ~= nil then args.segments = {{text = o.prompt, special = true}} end
  for name, key in pairs(SAMPLING) do
    if o[name] ~= nil then args[key] = o[name] end
  end
  return rs.call("submit", args).stream
end

--- Wait for streams -> a table from id to {text=, thinking=, ids=, tokens=, stop=, verdict=, tok_per_s=, ...}.
---@param streams integer[]
---@param on_token? fun(event: table)
---@return table
function rs.wait(streams, on_token)
  local left, out = 0, {}
  want("rs.wait", "streams", streams, "table")
  if on_token ~= nil then want("rs.wait", "on_token", on_token, "function") end
  for _, id in ipairs(streams) do
    if math.type(id) ~= "integer" then error("rs.wait: streams: ids expected, got " .. type(id), 2) end
    if finished[id] then error("rs.wait: stream " .. id .. " has ended and was waited for", 2) end
    rs.call("stream.get", {stream = id}) -- an id that does not exist would be waited for without end
    left = left + 1
    out[id] = {ids = {}}
  end
  for id in pairs(out) do wanted[id] = wanted[id] or {} end
  for i = backlog_first, backlog_last do -- what has come already
    local ev = backlog[i]
    if out[ev.id] and (ev.type == "token" or ev.type == "done") then
      table.insert(wanted[ev.id], ev)
      backlog[i] = {type = "taken", id = ev.id}
    end
  end
  local done = {}
  while left > 0 do
    for id, r in pairs(out) do
      local list = wanted[id]
      for i = (done[id] or 0) + 1, #list do
        local ev = list[i]
        done[id], list[i] = i, true
        if ev.type == "token" then
          if ev.token >= 0 then r.ids[#r.ids + 1] = ev.token end
          if on_token then on_token(ev) end
        else
          for k, v in pairs(ev.data) do r[k] = v end
          left, finished[id] = left - 1, true
        end
      end
    end
    if left > 0 then pump(core.now() + 600) end
  end
  for id in pairs(out) do wanted[id] = nil end
  return out
end

--- An answer; options of rs.submit, and on_token = function(event).
---@param opts table
---@return table answer text, thinking, ids, tokens, stop, verdict, reason, tok_per_s ...
---> print(rs.generate{prompt = "Hello", max_tokens = 4}.text)
function rs.generate(opts)
  local o = options("rs.generate", opts, GENERATE)
  local args = copy(o)
  args.on_token = nil
  local id = rs.submit(args)
  return rs.wait({id}, o.on_token)[id]
end

--- Many prompts at once -> list of answers, in order.
---@param list table[] options of rs.submit
---@return table[]
---> print(#rs.generate_all{{prompt = "a", max_tokens = 2}, {prompt = "b", max_tokens = 2}})
function rs.generate_all(list)
  want("rs.generate_all", "list", list, "table")
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
  if info == nil then error("no model is open: rs.model.open() opens one", 3) end
  return templates, templates.choose(info.template, {arch = info.arch, pre = info.pre}), info
end

--- Messages ({role=, content=}...) in the model's chat template -> segments, whether the answer begins inside a thought.
---@param messages table[]
---@param opts? table for the template: enable_thinking, add_generation_prompt ...
---@return table[] segments
---@return boolean thinking
---> print(#rs.render{{role = "user", content = "Hello"}})
function rs.render(messages, opts)
  want("rs.render", "messages", messages, "table")
  if opts ~= nil then want("rs.render", "opts", opts, "table") end
  local templates, t, info = template()
  local o = copy({add_generation_prompt = true, source = info.template}, opts)
  local segments, thinking = templates.render(t, messages, o)
  return segments, thinking
end

---@class rs.session
local Session = {}
Session.__index = Session
Session.__name = "rs.session"

--- A conversation. Options: system, think.
---@param opts? table
---@return rs.session
---> local s = rs.session{think = false}; print(s:chat("What is the capital of France?").text)
function rs.session(opts)
  local o = options("rs.session", opts, {"system", "think"})
  local s = setmetatable({messages = {}, think = o.think, id = rs.call("session.new").session, generation = generation}, Session)
  if o.system then s.messages[1] = {role = "system", content = o.system} end
  return s
end

--- Say something; options of rs.generate.
---@param text string
---@param opts? table
---@return table answer
function Session:chat(text, opts)
  if self.generation ~= generation then error("the conversation's model is closed", 2) end
  want("session:chat", "text", text, "string")
  if opts ~= nil then want("session:chat", "opts", opts, "table") end
  local o = copy(opts)
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

--- The answer to a question in a fresh conversation; options of rs.generate, and think (false).
---@param text string
---@param opts? table
---@return table answer
---> print(rs.ask("What is the capital of France?").text)
function rs.ask(text, opts)
  want("rs.ask", "text", text, "string")
  if opts ~= nil then want("rs.ask", "opts", opts, "table") end
  local o = copy(opts)
  local segments, thinking = rs.render({{role = "user", content = text}}, {enable_thinking = o.think or false})
  o.think = nil
  o.segments, o.thinking = segments, thinking
  return rs.generate(o)
end

--- One pass over tokens. Options: ids or prompt, logits ("last", "all", "none"), layers -> {argmax_each=, nll=, logits=, layers=, blob=, vocab=, n=}.
---@param opts table
---@return table
---> print(rs.forward{prompt = "Hello world", logits = "none"}.nll)
function rs.forward(opts)
  local o = options("rs.forward", opts, {"ids", "prompt", "logits", "layers"})
  local args = {ids = o.ids, logits = o.logits, layers = o.layers}
  if o.prompt then args.segments = {{text = o.prompt, special = true}} end
  local r, blob = rs.call("forward", args)
  r.blob = blob
  return r
end

--- Token ids of a text; special tokens are parsed only if asked for.
---@param text string
---@param special? boolean
---@return integer[]
---> print(#rs.encode("Hello world"))
function rs.encode(text, special) return rs.call("encode", {text = text, special = special or false}).ids end
--- The text of token ids.
---@param ids integer[]
---@param special? boolean print control tokens
---@return string
---> print(rs.decode(rs.encode("Hello world")))
function rs.decode(ids, special) return rs.call("decode", {ids = ids, special = special or false}).text end

-- ---- observation ------------------------------------------------------------------------------------------------------------------

rs.time = {}
--- Step times by mode, kind of op and layer.
---@return table
---> print(rs.time.stats().simulated)
function rs.time.stats() return rs.call("stats") end
--- All-reduces by rank: count, p50_us, p99_us, waiting and moving apart, algbw_gbs, busbw_gbs.
---@return table
---> print(#rs.time.allreduce().ranks)
function rs.time.allreduce() return rs.call("allreduce") end
rs.op = {}
--- Ops of the program whose site matches the glob.
---@param glob? string
---@return table
---> print(#rs.op.list("blk.0.*"))
function rs.op.list(glob) return rs.call("program", {site = glob or "*"}).ops end
--- What ran in the last step: impl, why, us by rank.
---@return table
---> rs.ask("Hello", {max_tokens = 2}); print(rs.op.ledger()[1].impl)
function rs.op.ledger() return rs.call("ledger").ops end
--- The verdict on the last answer, or on that of a stream.
---@param stream? integer
---@return table verdict, reason, health, first_bad
---> rs.ask("Hello"); print(rs.health().verdict)
function rs.health(stream) return rs.call("health", {stream = stream}) end
--- Which part of which tensor lies where. Options: path, ranks, split; the open model by default.
---@param opts? table
---@return table
---> print(#rs.audit{ranks = 4}.plan)
function rs.audit(opts)
  local args = copy(options("rs.audit", opts, {"path", "ranks", "split"}))
  if args.path ~= nil then args.path = core.path(args.path) end
  return rs.call("audit", args)
end

setmetatable(rs, {__index = function(t, k)
  if k == "exp" or k == "notebook" then
    local m = require(k)
    rawset(t, k, m)
    return m
  end
end})

-- ---- commands ---------------------------------------------------------------------------------------------------------------------

rs.cmd = {}

--- Add a command to the console: fn gets what was typed after "/name" as one string.
---@param name string letters, digits, - and _
---@param fn fun(args: string)
---@param help? string one line for /help
---> rs.cmd.add("hello", function(args) print("hello " .. args) end, "say hello"); rs.cmd.remove("hello")
function rs.cmd.add(name, fn, help)
  want("rs.cmd.add", "name", name, "string")
  want("rs.cmd.add", "fn", fn, "function")
  if help ~= nil then want("rs.cmd.add", "help", help, "string") end
  if not name:match("^[%a][%w_-]*$") or #name > 40 then error("rs.cmd.add: '" .. name .. "' cannot be a command's name", 2) end
  if core.reserved(name) then error("rs.cmd.add: /" .. name .. " is the console's own", 2) end
  core.commands[name] = {fn = fn, help = help or "added by a script"}
end

--- Take an added command away.
---@param name string
function rs.cmd.remove(name)
  want("rs.cmd.remove", "name", name, "string")
  core.commands[name] = nil
end

-- ---- keys and panels --------------------------------------------------------------------------------------------------------------

rs.key = {functions = {}}

--- Bind a key of the console's panels: to an action or a command line ("zoom", "/stats", "=rs.mode()"), or to a function. Options: place (anywhere, panels,
--- input, chat, log, ranks, allreduce, step, ops, patches, custom ...; /bind lists them), help (for the overlay).
---@param key string "F5", "C-t", "M-d", "x"
---@param action string|function
---@param opts? table
---> print(pcall(rs.key.map, "F5", "/stats"))
function rs.key.map(key, action, opts)
  want("rs.key.map", "key", key, "string")
  local o = options("rs.key.map", opts, {"place", "help"})
  for k, v in pairs(o) do want("rs.key.map", k, v, "string") end
  if type(action) == "function" then
    local id = #rs.key.functions + 1
    core.key(key, o.place, nil, id, o.help or "a script's")
    rs.key.functions[id] = action
  else
    core.key(key, o.place, want("rs.key.map", "action", action, "string"), 0, o.help)
  end
end

--- Take an added binding away; the key means what it meant before.
---@param key string
---@param place? string all of them without it
---> print(pcall(rs.key.unmap, "F5"))
function rs.key.unmap(key, place)
  want("rs.key.unmap", "key", key, "string")
  if place ~= nil then want("rs.key.unmap", "place", place, "string") end
  core.unkey(key, place)
end

rs.panel = {}
local panels = {} -- by name: the task that renews its text

--- Add a panel to the console; /layout shows it by its name. Options: title, fn (gives its text, lines apart by newlines), every_s (how often fn is asked; 1).
--- fn runs as a task: it may ask the engine and wait.
---@param name string letters, digits and -
---@param opts? table
---> print(pcall(rs.panel.add, "mine", {title = "Mine", fn = function() return "tokens: " .. rs.call("stats").tokens end}))
function rs.panel.add(name, opts)
  want("rs.panel.add", "name", name, "string")
  local o = options("rs.panel.add", opts, {"title", "fn", "every_s"})
  if o.title ~= nil then want("rs.panel.add", "title", o.title, "string") end
  if o.every_s ~= nil then want("rs.panel.add", "every_s", o.every_s, "number") end
  if o.fn ~= nil then want("rs.panel.add", "fn", o.fn, "function") end
  core.panel(name, o.title or name)
  if panels[name] then panels[name]:cancel() end
  panels[name] = o.fn and rs.spawn(function()
    while true do
      local good, text = pcall(o.fn)
      core.panel_text(name, good and tostring(text) or "error: " .. tostring(text))
      if not good then error(text, 0) end
      core.sleep(math.max(0.1, o.every_s or 1))
    end
  end) or nil
end

--- Replace the text of a panel.
---@param name string
---@param text string
---> print(pcall(rs.panel.text, "mine", "hello"))
function rs.panel.text(name, text)
  want("rs.panel.text", "name", name, "string")
  core.panel_text(name, want("rs.panel.text", "text", text, "string"))
end

--- Take a panel away.
---@param name string
---> print(pcall(rs.panel.remove, "mine"))
function rs.panel.remove(name)
  want("rs.panel.remove", "name", name, "string")
  if panels[name] then panels[name]:cancel() end
  panels[name] = nil
  core.panel(name, nil)
end

require "look"(rs)

-- The library's other files ask for `rs` while it loads.
package.loaded["rs"] = rs
return rs
