-- commands.lua: the console's commands that are written in Lua. Each takes what was typed after its name.
local rs = require "rs"
local exp, notebook, core = rs.exp, rs.notebook, rs.core

local commands = {}
local QUESTION = "What is the capital of France?"

local function trim(s) return (s:match("^%s*(.-)%s*$")) end

local function split(s, sep)
  local out = {}
  for part in (s .. sep):gmatch("(.-)" .. sep) do out[#out + 1] = trim(part) end
  return out
end

-- "8" is a number where a setting wants one.
local function value(v)
  if v == "true" or v == "on" then return true end
  if v == "false" then return false end
  return math.tointeger(tonumber(v)) or v
end

-- Words NAME=VALUE up to the end -> table in the order of names.
local function assignments(s, where)
  local t = {}
  for word in s:gmatch("%S+") do
    local k, v = word:match("^([^=]+)=(.+)$")
    if not k then error(where .. ": expected NAME=VALUE, got '" .. word .. "'", 0) end
    t[k] = v
  end
  return t
end

-- What stands before and after " : ".
local function question_of(args)
  local before, after = args:match("^(.-)%s*:%s+(.*)$")
  if before then return before, after end
  before, after = args:match("^(.-)%s*:$")
  return before or args, nil
end

local function book() return notebook.open() end

function commands.exp(args)
  local head, tail = question_of(args)
  local factors, repeats = {}, 1
  for k, v in pairs(assignments(head, "/exp")) do
    if k == "repeats" then
      repeats = math.tointeger(tonumber(v)) or error("/exp: repeats: a number expected, got " .. v, 0)
    else
      factors[k] = {}
      for _, l in ipairs(split(v, ",")) do table.insert(factors[k], value(l)) end
      if #factors[k] < 2 then error("/exp: " .. k .. " needs two levels at least, as in " .. k .. "=A,B", 0) end
    end
  end
  if next(factors) == nil then error("usage: /exp FACTOR=LEVEL,LEVEL... [repeats=N] [: QUESTION; QUESTION...]", 0) end
  local last = rs.now()
  local r = exp.run{factors = factors, repeats = repeats, prompts = split(tail or QUESTION, ";"), progress = function(done, total, left)
    if rs.now() - last < 2 then return end
    last = rs.now()
    print(("%d of %d arms, %.0f s left"):format(done, total, left))
  end}
  print(exp.table(r))
  print(exp.effects_text(r))
  for _, s in ipairs(r.sentences) do print(s) end
  local nb <close> = book()
  print(("experiment %d in the notebook"):format(nb:experiment(trim(head), r)))
end

function commands.bisect(args)
  local head, question = question_of(args)
  question = question or QUESTION
  local patches = assignments(head, "/bisect")
  if next(patches) == nil then patches = rs.state().patches end
  if next(patches) == nil then error("/bisect: no patch is away from its default, and none was named", 0) end
  local function ids() return table.concat(rs.ask(question, {max_tokens = 40}).ids, " ") end
  local good = exp.restoring(function()
    rs.patch.reset()
    return ids()
  end)
  local found, probes = exp.bisect(patches, function() return ids() ~= good end, function(c, bad) print(("%-60s %s"):format(exp.name(c), bad and "bad" or "good")) end)
  if found == nil then print("together they do not change the answer")
  else print(("the smallest set that changes the answer: %s (%d probes)"):format(exp.name(found), probes)) end
end

function commands.claim(args)
  local nb <close> = book()
  local text = args:match("^add%s+(.+)$")
  if not text then
    if args ~= "" then error("usage: /claim [add STATEMENT; QUESTION; ANSWER; CONFIG: right|wrong; ...]", 0) end
    for _, c in ipairs(nb:claims()) do print(("%3d  %-18s %s"):format(c.id, c.status, c.statement)) end
    return
  end
  local parts = split(text, ";")
  if #parts < 4 then error("/claim add: STATEMENT; QUESTION; ANSWER; CONFIG: right|wrong", 0) end
  local steps = {}
  for i = 4, #parts do
    local config, expect = parts[i]:match("^(.-)%s*:%s*(%a+)$")
    if expect ~= "right" and expect ~= "wrong" then error("/claim add: expected CONFIG: right or CONFIG: wrong, got '" .. parts[i] .. "'", 0) end
    local c = {}
    if config ~= "default" then
      for k, v in pairs(assignments(config, "/claim add")) do c[k] = value(v) end
    end
    steps[#steps + 1] = {config = c, expect = expect}
  end
  local id, status = nb:claim{statement = parts[1], question = parts[2], reference = parts[3], steps = steps}
  print(("claim %d: %s"):format(id, status))
end

function commands.retest(args)
  local nb <close> = book()
  local id
  if args ~= "" and args ~= "all" then id = math.tointeger(tonumber(args)) or error("usage: /retest [ID|all]", 0) end
  local list = nb:retest(id)
  if #list == 0 then print("there are no claims") end
  for _, c in ipairs(list) do print(("%3d  %s -> %s: %s (%s)"):format(c.id, c.before, c.status, c.statement, c.note)) end
end

function commands.notebook(args)
  local nb <close> = book()
  local word, rest = args:match("^(%S*)%s*(.*)$")
  if word == "task" and rest ~= "" then print(("task %d"):format(nb:task(rest)))
  elseif word == "done" and tonumber(rest) then nb:task_status(math.tointeger(tonumber(rest)), "done")
  elseif word == "hypothesis" and rest ~= "" then print(("hypothesis %d"):format(nb:hypothesis(rest)))
  elseif word == "resolve" then
    local id, status = rest:match("^(%d+)%s+(%a+)$")
    if not id then error("usage: /notebook resolve ID supported|refuted|superseded|open", 0) end
    nb:resolve(math.tointeger(id), status)
  elseif args:match("%.md$") then
    local f, why = io.open(args, "w")
    if not f then error("/notebook: " .. why, 0) end
    f:write(nb:markdown())
    f:close()
    print("written to " .. args)
  elseif args == "" then io.write(nb:markdown())
  else error("usage: /notebook [FILE.md | task TEXT | done ID | hypothesis TEXT | resolve ID STATUS]", 0) end
end

function commands.triage(args)
  local triage = require "triage"
  triage.report(triage.run{prompts = args ~= "" and {args} or nil})
end

-- A command that a script has added: "NAME ARGS".
function commands.added(line)
  local name, args = line:match("^(%S+) (.*)$")
  core.commands[name].fn(args)
end

return commands
