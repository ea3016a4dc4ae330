-- lua-docs.lua: the reference of the module rs out of the comments of its sources, which are the one table that everything is made from.
--
--   rankscope scripts/lua-docs.lua LUA_FOLDER write FOLDER     FOLDER/lua.md and FOLDER/rs.lua (LuaCATS)
--   rankscope scripts/lua-docs.lua LUA_FOLDER check            every function has a description (TAP)
--   rankscope scripts/lua-docs.lua LUA_FOLDER examples         run every example on the shipped model (TAP)
--
-- A description is a block of "---" lines over a function: text, then "---@param NAME TYPE [WORDS]", "---@return TYPE [NAME WORDS]", and "---> CODE", an
-- example.
local folder, what, out = arg[1], arg[2], arg[3]

local SOURCES = {"rs.lua", "look.lua", "exp.lua", "notebook.lua", "triage.lua", "op.lua"}
-- Local names in the sources, and how a script reaches them.
local PUBLIC = {exp = "rs.exp", notebook = "rs.notebook", triage = "triage", Model = "rs.model", Session = "rs.session", Tap = "rs.tap", Task = "rs.task", Tensor = "rs.tensor",
                Notebook = "rs.notebook.book", Call = "rs.patch.call", PatchTensor = "rs.patch.tensor", Weight = "rs.patch.weight"}
local OBJECT = {Model = "model", Session = "session", Tap = "tap", Task = "task", Tensor = "tensor", Notebook = "book", Call = "call", PatchTensor = "tensor", Weight = "weight"}

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("a")
  f:close()
  return text
end

-- ---- the table -----------------------------------------------------------------------------------------------------------------------

-- One function: {name=, call=, object=, text=, params={{name,type,words}}, returns=, examples=}.
local function entry(block, head)
  local name, params = head:match("^function%s+([%w_.:]+)%s*%(([^)]*)%)")
  if not name then return nil end
  local root, sep, rest = name:match("^([%w_]+)([.:])(.+)$")
  if not root or (root ~= "rs" and not PUBLIC[root]) then return nil end
  local e = {text = {}, params = {}, returns = {}, examples = {}, object = sep == ":" and root or nil}
  e.name = (PUBLIC[root] or root) .. sep .. rest
  e.call = (OBJECT[root] or PUBLIC[root] or root) .. sep .. rest .. "(" .. params .. ")"
  e.args = params
  for _, line in ipairs(block) do
    local p, t, words = line:match("^@param%s+(%S+)%s+(%S+)%s*(.*)$")
    local fun = line:match("^@param%s+%S+%s+(fun%b()%S*)")
    local rt, rwords = line:match("^@return%s+(%S+)%s*(.*)$")
    local code = line:match("^>%s*(.*)$")
    if p then
      if fun then
        t = fun .. (line:match("^@param%s+%S+%s+fun%b():%s*(%S+)") and ": " .. line:match("^@param%s+%S+%s+fun%b():%s*(%S+)") or "")
        words = ""
      end
      table.insert(e.params, {name = p, type = t, words = words, line = line})
    elseif rt then table.insert(e.returns, {type = rt, words = rwords, line = line})
    elseif code then table.insert(e.examples, code)
    elseif line:sub(1, 1) ~= "@" then table.insert(e.text, (line:gsub("^ ", ""))) end
  end
  return e
end

local function parse()
  local list, classes = {}, {}
  for _, file in ipairs(SOURCES) do
    local block = {}
    for line in (read(folder .. "/" .. file) .. "\n"):gmatch("(.-)\n") do
      local comment = line:match("^%-%-%-(.*)$")
      if comment and not line:match("^%-%-%-%-") then
        block[#block + 1] = comment
        local class, field = comment:match("^@class%s+(%S+)"), comment:match("^@field%s+(.*)$")
        if class then
          classes[#classes + 1] = {name = class, file = file, fields = {}, text = table.move(block, 1, #block - 1, 1, {})}
          block = {}
        elseif field then
          table.insert(classes[#classes].fields, field)
          block = {}
        end
      else
        local e = #block > 0 and entry(block, line)
        if e then
          e.file = file
          list[#list + 1] = e
        end
        block = {}
      end
    end
  end
  return list, classes
end

local list, classes = parse()

-- ---- what is made from it ------------------------------------------------------------------------------------------------------------

local TITLES = {["rs.lua"] = "The engine, models, answers", ["look.lua"] = "Looking inside", ["exp.lua"] = "Experiments", ["notebook.lua"] = "The notebook",
                ["triage.lua"] = "Triage", ["op.lua"] = "Patches in Lua"}

-- Objects that have fields are described where their file begins.
local function describe_classes(add, file)
  for _, c in ipairs(classes) do
    if c.file == file and #c.fields > 0 then
      if #c.text > 0 then add("") end
      for _, t in ipairs(c.text) do add((t:gsub("^ ", ""))) end
      add("")
      add("Fields of a %s:", c.name:match("[^.]+$"))
      add("")
      for _, f in ipairs(c.fields) do
        local name, kind, words = f:match("^(%S+)%s+(%S+)%s*(.*)$")
        add("- `%s`: %s%s", name, kind, words ~= "" and "; " .. words or "")
      end
    end
  end
end

local function markdown()
  local o = {}
  local function add(fmt, ...) o[#o + 1] = select("#", ...) > 0 and fmt:format(...) or fmt end
  add("# The module rs")
  add("")
  add("Made by scripts/lua-docs.lua from the comments of the sources in lua/; tests/lua_docs.t checks that it is current and runs the examples.")
  add("")
  add("Scripts run as `rankscope SCRIPT.lua ARGS`, `rankscope -e CODE`, `/lua CODE`, `=CODE` and `/run FILE.lua` at the prompt, where they use the console's own")
  add("engine. `init.lua` in `$XDG_CONFIG_HOME/rankscope` runs when the console starts. The whole standard library is there; `rs` is a global. Calls wait for the")
  add("engine's reply, and Ctrl-C ends any of them. Errors of the engine are tables with `code` and `msg`; arguments and options that do not exist are errors.")
  local file
  for _, e in ipairs(list) do
    if e.file ~= file then
      file = e.file
      add("")
      add("## %s", TITLES[file])
      describe_classes(add, file)
    end
    add("")
    add("### %s", e.call)
    for _, t in ipairs(e.text) do add(t) end
    if #e.params + #e.returns > 0 then add("") end
    for _, p in ipairs(e.params) do add("- `%s`: %s%s", p.name:gsub("%?$", ""), p.type .. (p.name:sub(-1) == "?" and ", optional" or ""), p.words ~= "" and "; " .. p.words or "") end
    for _, r in ipairs(e.returns) do add("- gives %s%s", r.type, r.words ~= "" and ": " .. r.words or "") end
    if #e.examples > 0 then
      add("")
      add("```lua")
      for _, x in ipairs(e.examples) do add(x) end
      add("```")
    end
  end
  return table.concat(o, "\n") .. "\n"
end

local function stubs()
  local o, seen = {"---@meta", "-- What language servers read about the module rs. Made by scripts/lua-docs.lua.", ""}, {}
  local function add(line) o[#o + 1] = line end
  for _, c in ipairs(classes) do
    add("---@class " .. c.name)
    for _, f in ipairs(c.fields) do add("---@field " .. f) end
    add("local " .. c.name:gsub("%.", "_") .. " = {}")
    add("")
  end
  add("rs = {}")
  for _, e in ipairs(list) do
    local parent = e.name:match("^(.-)[.:][^.:]+$")
    if not e.object and parent ~= "rs" and not seen[parent] then
      seen[parent] = true
      add((parent == "triage" and "local triage = {}") or parent .. " = " .. parent .. " or {}")
    end
  end
  for _, e in ipairs(list) do
    add("")
    for _, t in ipairs(e.text) do add("---" .. t) end
    for _, p in ipairs(e.params) do add("---" .. p.line) end
    for _, r in ipairs(e.returns) do add("---" .. r.line) end
    local name = e.object and PUBLIC[e.object]:gsub("%.", "_") .. ":" .. e.name:match(":(.+)$") or e.name
    add(("function %s(%s) end"):format(name, e.args))
  end
  return table.concat(o, "\n") .. "\n"
end

local function write(path, text)
  local f = assert(io.open(path, "w"))
  assert(f:write(text))
  f:close()
end

-- ---- tests ---------------------------------------------------------------------------------------------------------------------------

local n, failed = 0, 0
local function ok(good, name, why)
  n = n + 1
  if not good then failed = failed + 1 end
  print(("%s %d - %s"):format(good and "ok" or "not ok", n, name))
  if not good and why then print("# " .. tostring(why):gsub("\n", "\n# ")) end
end

local function check()
  local known = {}
  for _, e in ipairs(list) do known[e.name] = e end
  local function look(t, path)
    local keys = {}
    for k in pairs(t) do keys[#keys + 1] = k end
    table.sort(keys)
    for _, k in ipairs(keys) do
      local v, name = t[k], path .. "." .. k
      if type(v) == "function" then
        local e = known[name]
        ok(e and #e.text > 0, name .. " has a description")
        if e then
          local given = {}
          for _, p in ipairs(e.params) do given[(p.name:gsub("%?$", ""))] = true end
          for p in e.args:gmatch("[%w_.]+") do
            if not given[p] and p ~= "..." then ok(false, name .. ": " .. p .. " has a type") end
          end
        end
      elseif type(v) == "table" and k ~= "core" then look(v, name) end
    end
  end
  local _ = rs.exp, rs.notebook -- loaded when asked for
  look(rs, "rs")
  look(require "triage", "triage")
  local described = 0
  for _, e in ipairs(list) do described = described + (e.file == "op.lua" and 1 or 0) end
  for _, m in ipairs(rs.core.op_methods()) do
    local e = known["rs.patch." .. m]
    ok(e and #e.text > 0, m .. " of patches has a description")
    described = described - 1
  end
  ok(described == 0, "and no more than there is")
end

local function examples()
  rs.model.open{ranks = 2}
  local shown = 0
  for _, e in ipairs(list) do
    local code = table.concat(e.examples, "\n") -- lines of one example
    if code ~= "" then
      shown = shown + 1
      local fn, why = load(code, "=" .. e.name, "t")
      local good = fn ~= nil
      if fn then good, why = xpcall(fn, debug.traceback) end
      ok(good, "example of " .. e.name, why)
      if rs.model.current() == nil then rs.model.open{ranks = 2} end
    end
  end
  ok(shown >= 40, shown .. " examples")
end

if what == "write" then
  write(out .. "/lua.md", markdown())
  write(out .. "/rs.lua", stubs())
elseif what == "check" or what == "examples" then
  if what == "check" then check() else examples() end
  print("1.." .. n)
else
  error("usage: rankscope scripts/lua-docs.lua LUA_FOLDER write FOLDER | check | examples", 0)
end
