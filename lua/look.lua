-- look.lua: looking inside: taps, watchpoints, breakpoints, tensors, comparisons, replay, benchmarks. Part of the module rs, which calls this file.
local check = require "check"
local options, want, copy = check.options, check.want, check.copy

return function(rs)
local core = rs.core

-- ---- taps and watchpoints -----------------------------------------------------------------------------------------------------------

---@class rs.tap
local Tap = {}
Tap.__index = Tap
Tap.__name = "rs.tap"
Tap.__tostring = function(t) return ("tap %d on %s (%d sites)"):format(t.id, t.site, t.sites) end

--- Keep statistics of what ops write, in graph mode too. Options: what ("stats", "hash", "values", "copy"), n (values to keep), rank, out.
---@param site string glob over sites
---@param opts? table
---@return rs.tap
---> local t = rs.tap("blk.*.attn.norm"); rs.ask("Hello"); print(#t:read()); t:untap()
function rs.tap(site, opts)
  want("rs.tap", "site", site, "string")
  local r = rs.call("probe.tap", copy(options("rs.tap", opts, {"what", "n", "rank", "out"}), {site = site}))
  return setmetatable({id = r.id, site = site, sites = type(r.sites) == "table" and #r.sites or r.sites}, Tap)
end

--- Take taps away: one by its id, those of a glob, or all.
---@param which? integer|string
---@return integer removed
---> rs.tap("output.norm"); print(rs.untap("output.norm"))
function rs.untap(which)
  if which ~= nil and math.type(which) ~= "integer" and type(which) ~= "string" then
    error("rs.untap: an id or a glob expected, got " .. type(which), 2)
  end
  return rs.call("probe.untap", type(which) == "string" and {site = which} or {id = which}).removed
end

--- What the flight recorder holds of armed sites. Options: steps (of the last 64), rank. A record has step, rows, ranks: a list with rank, n, min, max,
--- absmax, mean, rms, zeros, nan, inf, hash of each, and values where they are kept, and whole: the same of the whole tensor, rs.null where that is not known.
---@param site? string glob
---@param opts? table
---@return table sites each with site, kind, layout, records
---> rs.tap("output.norm"); rs.ask("Hello"); print(rs.read("output.norm", {steps = 2})[1].records[1].whole.rms); rs.untap()
function rs.read(site, opts)
  if site ~= nil then want("rs.read", "site", site, "string") end
  return rs.call("probe.read", copy(options("rs.read", opts, {"steps", "rank"}), {site = site})).sites
end

--- The same for this tap.
---@param steps? integer
---@return table
function Tap:read(steps) return rs.read(self.site, {steps = steps}) end

--- Take it away.
function Tap:untap() rs.call("probe.untap", {id = self.id}) end
Tap.__close = function(t) pcall(Tap.untap, t) end

--- Watch for trouble. cond: nan, inf, allzero, constant, absmax>X, drift>X, rankdiff. Options: site (glob), action ("log", "stop"), rank, out.
---@param cond string
---@param opts? table
---@return integer id
---> local id = rs.watch("nan", {site = "blk.*"}); rs.ask("Hello"); print(#rs.watches()); rs.unwatch(id)
function rs.watch(cond, opts)
  want("rs.watch", "cond", cond, "string")
  return rs.call("probe.watch", copy(options("rs.watch", opts, {"site", "action", "rank", "out"}), {cond = cond})).id
end

--- Take a watchpoint away, or all.
---@param id? integer
---> print(rs.unwatch())
function rs.unwatch(id)
  if id ~= nil and math.type(id) ~= "integer" then error("rs.unwatch: an id expected, got " .. type(id), 2) end
  return rs.call("probe.unwatch", {id = id}).removed
end

--- All watchpoints with their hits.
---@return table
---> rs.show(rs.watches())
function rs.watches() return rs.call("probe.list").watches end

-- ---- breakpoints ---------------------------------------------------------------------------------------------------------------------

rs.brk = {}

--- Stop at ops. Options: when ("after", "before"), cond (such as "step > 3 && absmax > 100"), rank. Steps run eager while one is armed.
---@param site string glob
---@param opts? table
---@return integer id
---@return integer sites how many sites the pattern names
---> local id = rs.brk.add("blk.2.ffn.router", {cond = "pos == 999999"}); rs.brk.del(id)
function rs.brk.add(site, opts)
  want("rs.brk.add", "site", site, "string")
  local r = rs.call("break.add", copy(options("rs.brk.add", opts, {"when", "cond", "rank"}), {site = site}))
  return r.id, r.sites
end

--- Take one away, or all.
---@param id? integer
---> print(rs.brk.del())
function rs.brk.del(id)
  if id ~= nil and math.type(id) ~= "integer" then error("rs.brk.del: an id expected, got " .. type(id), 2) end
  return rs.call("break.del", {id = id}).removed
end

--- All breakpoints with their hits.
---> rs.show(rs.brk.list())
function rs.brk.list() return rs.call("break.list").breaks end

--- Wait until the engine is stopped -> what stopped it, or nil when it was not in time.
---@param timeout_s? number
---@return table|nil
---> rs.brk.add("output.norm"); local s = rs.submit{prompt = "Hello", max_tokens = 2}; print(rs.brk.wait(10).site); rs.brk.del(); rs.continue(); rs.wait{s}
function rs.brk.wait(timeout_s)
  if timeout_s ~= nil then want("rs.brk.wait", "timeout_s", timeout_s, "number") end
  local until_s = rs.now() + (timeout_s or 60)
  repeat
    local at = rs.where()
    if at then return at end
    rs.next_event(0.05)
  until rs.now() >= until_s
end

--- Run n more ops, then stop.
---@param n? integer
function rs.step(n) return rs.call("step", {n = n}) end
--- Run to the first op of the next layer.
function rs.next() return rs.call("next") end
--- Run to the next breakpoint.
function rs.continue() return rs.call("continue") end
--- Where the engine is stopped, or nil.
---@return table|nil
---> print(rs.where())
function rs.where()
  local at = rs.call("where").stopped
  return at ~= rs.null and at or nil
end

-- ---- tensors -------------------------------------------------------------------------------------------------------------------------

---@class rs.tensor
local Tensor = {}
Tensor.__index = Tensor
Tensor.__name = "rs.tensor"
Tensor.__tostring = function(t) return ("tensor %s [%d, %d] rms %.6g absmax %.6g"):format(t.name, t.shape[1], t.shape[2], t.stats.rms or 0, t.stats.absmax or 0) end

rs.tensor = {}

local function range(where, v)
  if v == nil or type(v) == "table" then return v end
  local a, b = tostring(v):match("^(%d*):(%d*)$")
  if not a or type(v) ~= "string" then error(where .. ': a range such as "0:4" expected', 3) end
  return {math.tointeger(tonumber(a)) or 0, math.tointeger(tonumber(b))}
end

local READ = {"what", "index", "rank", "rows", "cols", "buffer"}

--- Read what an op wrote (or read: what = "in") while the engine is stopped, or of the last step where it is still there. Options: what, index, rank,
--- rows and cols ("0:4").
---@param site string
---@param opts? table
---@return rs.tensor
---> rs.brk.add("output.norm"); local s = rs.submit{prompt = "Hello", max_tokens = 2}; rs.brk.wait(10)
---> local t = rs.tensor.read("output.norm"); print(t, t:at(1, 1), t:diff(t).rel_l2); rs.brk.del(); rs.continue(); rs.wait{s}
function rs.tensor.read(site, opts)
  want("rs.tensor.read", "site", site, "string")
  local a = copy(options("rs.tensor.read", opts, READ), {site = site})
  a.rows, a.cols = range("rs.tensor.read: rows", a.rows), range("rs.tensor.read: cols", a.cols)
  if a.buffer then a.site = nil end
  local r, blob = rs.call("tensor.read", a)
  r.blob = blob or ""
  return setmetatable(r, Tensor)
end

--- A tensor object out of a reply that describes one and its blob: rs.tensor.of(rs.call("probe.read", {site = ..., what = "copy"})).
---@param reply table
---@param blob string
---@return rs.tensor
function rs.tensor.of(reply, blob)
  want("rs.tensor.of", "reply", reply, "table")
  want("rs.tensor.of", "blob", blob, "string")
  local t = copy(reply, {blob = blob})
  t.name = t.name or t.site or "tensor"
  t.shape = t.shape or {t.rows, t.width}
  t.stats = t.stats or {}
  if math.type(t.shape[1]) ~= "integer" or math.type(t.shape[2]) ~= "integer" then error("rs.tensor.of: the reply has no shape", 2) end
  return setmetatable(t, Tensor)
end

--- Overwrite a tensor while the engine is stopped inside a step: with one value everywhere.
---@param site string
---@param value number
---@param opts? table as rs.tensor.read
---@return integer written
function rs.tensor.write(site, value, opts)
  want("rs.tensor.write", "site", site, "string")
  want("rs.tensor.write", "value", value, "number")
  local word = value ~= value and "nan" or value == math.huge and "inf" or value == -math.huge and "-inf" or nil
  local a = copy(options("rs.tensor.write", opts, READ), {site = site, value = word or value})
  a.rows, a.cols = range("rs.tensor.write: rows", a.rows), range("rs.tensor.write: cols", a.cols)
  return rs.call("tensor.write", a).written
end

--- All values, row by row.
---@return number[]
function Tensor:values() return core.floats(self.blob) end

--- One value; rows and columns count from 1.
---@param row integer
---@param col integer
---@return number
function Tensor:at(row, col)
  if math.type(row) ~= "integer" or math.type(col) ~= "integer" or row < 1 or col < 1 or row > self.shape[1] or col > self.shape[2] then
    error(("tensor:at: rows 1..%d, columns 1..%d"):format(self.shape[1], self.shape[2]), 2)
  end
  return core.floats(self.blob, (row - 1) * self.shape[2] + col - 1, 1)[1]
end

--- How far another tensor of the same shape is away: rel_l2, max_abs and where that is.
---@param other rs.tensor
---@return table
function Tensor:diff(other)
  if getmetatable(other) ~= Tensor then error("tensor:diff: a tensor expected, got " .. type(other), 2) end
  if self.shape[1] ~= other.shape[1] or self.shape[2] ~= other.shape[2] then error("tensor:diff: the shapes differ", 2) end
  local a, b, d2, n2, worst, at = self:values(), other:values(), 0, 0, -1, 1
  for i = 1, #a do
    local d = a[i] - b[i]
    d2, n2 = d2 + d * d, n2 + b[i] * b[i]
    if math.abs(d) > worst then worst, at = math.abs(d), i end
  end
  return {rel_l2 = n2 > 0 and math.sqrt(d2 / n2) or (d2 > 0 and math.huge or 0), max_abs = math.max(worst, 0),
          at = {(at - 1) // self.shape[2] + 1, (at - 1) % self.shape[2] + 1}}
end

--- Write it as a NumPy file.
---@param path string
---> rs.ask("Hello"); local p = os.tmpname(); rs.tensor.read("output.norm"):save(p); os.remove(p)
function Tensor:save(path)
  local head = ("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }"):format(self.shape[1], self.shape[2])
  head = head .. (" "):rep(-(#head + 11) % 64) .. "\n"
  local f, why = io.open(path, "wb")
  if not f then error("tensor:save: " .. why, 2) end
  local ok, err = f:write("\x93NUMPY\1\0", string.pack("<I2", #head), head, self.blob)
  f:close()
  if not ok then error("tensor:save: " .. err, 2) end
end

-- ---- comparing -----------------------------------------------------------------------------------------------------------------------

-- Tokens out of the options of a comparison: prompt= (special tokens are parsed), text=, segments= or ids=.
local function tokens(where, opts, known, into)
  local o = options(where, opts, known)
  local a = copy(o, into)
  if a.prompt ~= nil then
    want(where, "prompt", a.prompt, "string")
    a.segments, a.prompt = {{text = a.prompt, special = true}}, nil
  end
  return a
end

--- Run the same tokens under two configurations and compare every op; b may be {file = "x.npz"}. Options: prompt or segments or ids, site, tolerance, decode,
--- cache.
---@param a table configuration: mode, ranks, numerics, patches, reset ...
---@param b table
---@param opts table
---@return table first, ops, out_of_tolerance, compared, logits
---> local d = rs.diff({mode = "eager"}, {mode = "graph"}, {prompt = "Hello"}); print(d.out_of_tolerance)
function rs.diff(a, b, opts)
  want("rs.diff", "a", a, "table")
  want("rs.diff", "b", b, "table")
  if b.file ~= nil then b = copy(b, {file = core.path(b.file)}) end
  return rs.call("diff", tokens("rs.diff", opts, {"prompt", "text", "segments", "ids", "site", "tolerance", "decode", "cache"}, {a = a, b = b}))
end

--- Write what every op writes to an .npz file. Options: prompt or segments or ids, site, config.
---@param path string
---@param opts table
---@return table path, arrays, tokens
---> local p = os.tmpname(); print(rs.dump(p, {prompt = "Hello", site = "output.*"}).arrays); os.remove(p)
function rs.dump(path, opts)
  want("rs.dump", "path", path, "string")
  return rs.call("dump", tokens("rs.dump", opts, {"prompt", "text", "segments", "ids", "site", "config"}, {path = core.path(path, true)}))
end

--- Every op against the reference on its own inputs. Options: prompt or segments or ids, decode, site, tolerance, config.
---@param opts table
---@return table compared, out_of_tolerance, first, guilty
---> local r = rs.replay{prompt = "Hello"}; print(r.compared, r.out_of_tolerance)
function rs.replay(opts)
  return rs.call("replay", tokens("rs.replay", opts, {"prompt", "text", "segments", "ids", "decode", "site", "tolerance", "config"}))
end

--- The hyper-parameters in use against what models of this shape are known to use.
---@return table model, facts, wrong, defaults
---> print(rs.hparams_check().wrong)
function rs.hparams_check() return rs.call("hparams.check") end

--- The cache of a conversation against computing it again.
---@param session integer
---@return table
function rs.cache_check(session)
  if math.type(session) ~= "integer" then error("rs.cache_check: session: an integer expected, got " .. type(session), 2) end
  return rs.call("cache.check", {session = session})
end

-- ---- speed ---------------------------------------------------------------------------------------------------------------------------

rs.bench = {}

--- Decode speed, modes in turns so that none has the machine to itself. Options: tokens, repeats, modes.
---@param opts? table
---@return table by mode: tok_per_s (median), min, max
---> rs.show(rs.bench.decode{tokens = 8, repeats = 1})
function rs.bench.decode(opts)
  local o = options("rs.bench.decode", opts, {"tokens", "repeats", "modes"})
  local modes, before, speeds = o.modes or {"eager", "graph"}, rs.mode(), {}
  want("rs.bench.decode", "modes", modes, "table")
  for _, k in ipairs{"tokens", "repeats"} do
    if o[k] ~= nil and (math.type(o[k]) ~= "integer" or o[k] < 1) then error("rs.bench.decode: " .. k .. ": an integer from 1 expected", 2) end
  end
  local ok, why = pcall(function()
    for _ = 1, o.repeats or 3 do
      for _, mode in ipairs(modes) do
        rs.mode(mode)
        local r = rs.generate{prompt = "Once upon a time", max_tokens = o.tokens or 64, ignore_eos = true}
        speeds[mode] = speeds[mode] or {}
        table.insert(speeds[mode], r.tok_per_s)
      end
    end
  end)
  rs.mode(before)
  if not ok then error(why, 0) end
  local out = {}
  for mode, v in pairs(speeds) do
    table.sort(v)
    out[mode] = {tok_per_s = v[#v // 2 + 1], min = v[1], max = v[#v]}
  end
  return out
end

end
