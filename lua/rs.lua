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
local listeners, finished = {}, {} -- by type of event; by stream

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
  handle, finished = h, {} -- the ids of streams are the engine's
  generation = generation + 1
end

--- Call fn(event) for every event of a type ("token", "done", "state", "stopped", "log", ...) that a wait comes across.
---@param kind string
---@param fn fun(event: table)
---> local n = 0; rs.on("token", function() n = n + 1 end); rs.ask("Hello", {max_tokens = 4}); print(n)
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
  if ev and ev.type == "done" then finished[ev.id] = true end
  return ev
end

--- The next event of the engine, or nil when none came in time.
---@param timeout_s? number
---@return table|nil
---> print(rs.next_event(0.01))
function rs.next_event(timeout_s)
  if timeout_s ~= nil then want("rs.next_event", "timeout_s", timeout_s, "number") end
  return next_event(timeout_s or 600)
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
  return rs.call("weights.load", {tensors = glob or "*", path = path})
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
  if info == nil then error("no model is open", 3) end
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
function rs.audit(opts) return rs.call("audit", options("rs.audit", opts, {"path", "ranks", "split"})) end

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

require "look"(rs)

-- The library's other files ask for `rs` while it loads.
package.loaded["rs"] = rs
return rs
