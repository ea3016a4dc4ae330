-- Every function of the module with wrong arguments: errors only. Prints TAP. Run by script_abuse.t.
local n = 0
local function ok(good, name)
  n = n + 1
  print(("%s %d - %s"):format(good and "ok" or "not ok", n, name))
end

-- Heavy or endless when it gets what it wants: given wrong things only.
local NEVER = {["rs.connect"] = true}
local cycle = {}
cycle.me = cycle
local deep = {}
local d = deep
for _ = 1, 200 do d.x = {} d = d.x end
local VALUES = {true, -1, 1e300, 0 / 0, math.mininteger, "", "nonsense", "\xff\0\xfe", ("x"):rep(100000), {}, {1, "a", {}}, {x = 1}, cycle, deep, print, coroutine.create(print), io.stdout,
                setmetatable({}, {__index = function() error("trap") end}), setmetatable({}, {__tostring = function() error("trap") end})}

local function call(fn, ...)
  local co = coroutine.create(fn) -- a stack of its own: what is left on it does not stay
  local good, why = coroutine.resume(co, ...)
  if not good and why == nil then return false end
  return good or type(why) == "string" or type(why) == "table"
end

local m = rs.model.open{ranks = 2}
local objects = {model = m, session = rs.session(), tap = rs.tap("output.norm"), task = rs.spawn(function() end)}
local nb_path = os.tmpname()
objects.book = rs.notebook.open(nb_path)

local calls = 0
local function attack(name, fn, self)
  if NEVER[name] then return end
  local good = true
  for _, a in ipairs(VALUES) do
    for _, args in ipairs{{a}, {a, a}, {"info", a}, {"mla", a, a}, {{prompt = a, ids = a, steps = a, path = a}}, {}} do
      if self ~= nil then table.insert(args, 1, self) end
      calls = calls + 1
      good = call(fn, table.unpack(args, 1, 4)) and good
    end
  end
  if rs.model.current() == nil then m = rs.model.open{ranks = 2} end
  ok(good, name .. ": errors only")
end

local function walk(t, path)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys)
  for _, k in ipairs(keys) do
    local v = t[k]
    if type(v) == "function" then attack(path .. "." .. k, v)
    elseif type(v) == "table" and k ~= "commands" and not k:match("_type$") then walk(v, path .. "." .. k) end
  end
end

local keep = {print = print}
local _ = rs.exp, rs.notebook
rs.core.sleep, rs.core.pause, rs.sleep, rs.next_event, rs.brk.wait, rs.on, rs.show = nil, nil, nil, nil, nil, nil, nil -- wait as long as they are told to; print what they get
rs.core.commands = nil
walk(rs, "rs")
for name, o in pairs(objects) do
  local mt = getmetatable(o)
  for k, v in pairs(mt) do
    if type(v) == "function" and k:sub(1, 2) ~= "__" and k ~= "close" then attack(name .. ":" .. k, v, o) end
  end
end
ok(calls > 5000, calls .. " calls")

-- Objects that outlive what they stand for.
local old = rs.model.open{ranks = 1}
local talk = rs.session()
old:close()
rs.model.open{ranks = 1}
for _, use in ipairs{{"a closed model", old.info, old}, {"a conversation of a closed model", talk.chat, talk, "hi"}, {"a method without its object", old.info, 5},
                     {"a method of another object", talk.chat, old, "x"}} do
  local good, why = pcall(use[2], use[3], use[4])
  ok(not good and tostring(why) ~= "", use[1] .. " is an error: " .. tostring(why))
end
objects.book:close()
ok(not pcall(objects.book.tasks, objects.book), "a closed notebook is an error")
os.remove(nb_path)
local h = rs.core.local_engine()
h:close()
ok(not pcall(h.call, h, "info"), "a closed engine is an error")
h:close()
ok(tostring(h) == "engine (closed)", "closing twice is nothing")

-- Memory stays flat over many objects and many errors.
local function used()
  collectgarbage()
  collectgarbage()
  return collectgarbage("count")
end
local function churn(rounds)
  for i = 1, rounds do
    pcall(rs.call, "nonsense", {i = i})
    local t = rs.tap("output.norm")
    t:untap()
    rs.state()
  end
end
churn(100)
local before = used()
churn(1000)
ok(used() - before < 300, ("a thousand taps and errors later the state holds %.0f KiB more"):format(used() - before))
ok(rs.ask("What is the capital of France?").text == "The capital of France is Paris.", "and the engine answers")
keep.print("1.." .. n)
