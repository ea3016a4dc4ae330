-- commands.lua: the console's commands that are written in Lua. Each takes what was typed after its name.
local rs = require "rs"
local exp, notebook, core = rs.exp, rs.notebook, rs.core

local commands = {}
local QUESTION = "What is the capital of France?"

local function count(n, what) return ("%d %s%s"):format(n, what, n == 1 and "" or "s") end

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

-- "del", or another debugger's word for it, and what stands behind it: an id, false for all; nil: it says something else.
local REMOVES = {del = true, delete = true, rm = true, remove = true, clear = true}
local function removal(args, what)
  local verb, which = args:match("^(%a+)%s*(.*)$")
  if not verb or not REMOVES[verb] then return nil end
  if which == "" or which == "all" or which == "*" then return false end
  return math.tointeger(tonumber(which)) or error(("/%s del: '%s' is not the number of one (/%s lists them; /%s del takes all away)"):format(what, which, what, what), 0)
end

local function book() return notebook.open() end

-- For what gives its result here and now: where no notebook can be written, it is not kept.
local function book_if_any()
  local ok, nb = pcall(notebook.open)
  if ok then return nb end
  print("what is found is not kept: " .. (tostring(nb):gsub("^%S+:%d+: ", "")))
  return notebook.open(":memory:")
end

-- Run fn(state). When it is stopped, the state stays in the notebook, and the same command goes on from it.
local function resumable(nb, what, fn)
  local key = what .. " on " .. rs.call("info").model.hash .. " " .. exp.name(rs.state().patches)
  local state = nb:kept(key)
  if state then print("going on from where it was stopped") end
  state = state or {}
  local finished = false
  local r = table.pack(core.finally(function()
    local got = table.pack(fn(state))
    finished = true
    return table.unpack(got, 1, got.n)
  end, function()
    nb:keep(key, not finished and next(state) and state or nil)
    if not finished and next(state) then print("stopped; the same command goes on from here") end
  end))
  return table.unpack(r, 1, r.n)
end

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
  local nb <close> = book_if_any()
  local r = resumable(nb, "/exp " .. args, function(state)
    return exp.run{factors = factors, repeats = repeats, prompts = split(tail or QUESTION, ";"), state = state, progress = function(done, total, left)
      if rs.now() - last < 2 then return end
      last = rs.now()
      print(("%d of %d arms, %.0f s left"):format(done, total, left))
    end}
  end)
  print(exp.table(r))
  print(exp.effects_text(r))
  for _, s in ipairs(r.sentences) do print(s) end
  local id = nb:experiment(trim(head), r)
  if nb.path ~= ":memory:" then print(("experiment %d in the notebook"):format(id)) end
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
  local nb <close> = book_if_any()
  local found, probes = resumable(nb, "/bisect " .. exp.name(patches) .. " : " .. question, function(known)
    return exp.bisect(patches, function() return ids() ~= good end, function(c, bad, left)
      print(("%-60s %-4s %s"):format(exp.name(c), bad and "bad" or "good", left >= 1 and ("at most %.0f s left"):format(left) or ""))
    end, known)
  end)
  if found == nil then print("together they do not change the answer")
  else print(("the smallest set that changes the answer: %s (%s)"):format(exp.name(found), count(probes, "probe"))) end
end

-- A key that a script has bound to a function was pressed.
function commands.key(id)
  local fn = rs.key.functions[math.tointeger(tonumber(id))]
  if fn then fn() end
end

-- One more row of a table.
local function row(cells, ...)
  for i = 1, select("#", ...) do cells[#cells + 1] = (select(i, ...)) end
end

-- {0, 1, 2, 5} -> "0-2,5"
local function ranges(layers)
  local out, from = {}, nil
  for i, l in ipairs(layers) do
    from = from or l
    if layers[i + 1] ~= l + 1 then
      out[#out + 1] = from == l and tostring(l) or from .. "-" .. l
      from = nil
    end
  end
  return table.concat(out, ",")
end

-- Tensors that differ in nothing but their layer are one.
local function by_layers(tensors)
  local out, seen = {}, {}
  for _, t in ipairs(tensors) do
    local layer, rest = t.name:match("^blk%.(%d+)%.(.+)$")
    local name = layer and "blk.*." .. rest or t.name
    local key = table.concat({name, t.type, t.from or "", t.from and t.file_type or ""}, "|")
    local group = seen[key]
    if not group then
      group = {name = name, layers = {}, type = t.type, from = t.from, file_type = t.file_type}
      seen[key], out[#out + 1] = group, group
    end
    group.layers[#group.layers + 1] = math.tointeger(tonumber(layer))
  end
  return out
end

function commands.weights(args)
  local glob, path = args:match("^load%s+(%S+)%s+from%s+(.+)$")
  if glob then
    local r = rs.call("weights.load", {tensors = glob, path = core.path(path)})
    local cells = {}
    for _, t in ipairs(r.tensors) do row(cells, t.name, t.type, t.file_type, t.same and "the same bytes" or "") end
    rs.core.table("~tensor|type|instead of|1note", cells)
    print(("%s from %s, generation %d, %s, %.1f ms"):format(count(#r.tensors, "tensor"), r.donor, r.generation, r.resharded and "dealt to the ranks anew" or "in place", r.took_ms))
    return
  end
  if args ~= "" and not args:match("^list") then error("usage: /weights [list GLOB | load GLOB from FILE.gguf]", 0) end
  local r = rs.call("weights.list", {tensors = args:match("^list%s+(%S+)$") or "*"})
  local cells = {}
  for _, t in ipairs(by_layers(r.tensors)) do row(cells, t.name, ranges(t.layers), t.type, t.from or "", t.from and t.file_type or "") end
  rs.core.table("~tensor|3layers|type|~2from|1the model has", cells)
end

function commands.claim(args)
  local nb <close> = book()
  local text = args:match("^add%s+(.+)$")
  if not text then
    if args ~= "" then error("usage: /claim [add STATEMENT; QUESTION; ANSWER; CONFIG: right|wrong; ...]", 0) end
    local list = nb:claims()
    for _, c in ipairs(list) do print(("%3d  %-18s %s"):format(c.id, c.status, c.statement)) end
    if #list == 0 then print("there are no claims") end
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
  local id, status, note = nb:claim{statement = parts[1], question = parts[2], reference = parts[3], steps = steps}
  print(("claim %d: %s (%s)"):format(id, status, note))
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
  local text, tie = rest:match("^(.-)%s+for%s+hypothesis%s+(%d+)$")
  if word == "task" and rest ~= "" then print(("task %d"):format(nb:task(text or rest, text and math.tointeger(tonumber(tie)))))
  elseif word == "done" and math.tointeger(tonumber(rest)) then
    nb:task_status(math.tointeger(tonumber(rest)), "done")
    print(("task %d: done"):format(math.tointeger(tonumber(rest))))
  elseif word == "hypothesis" and rest ~= "" then print(("hypothesis %d"):format(nb:hypothesis(rest)))
  elseif word == "resolve" then
    local id, status = rest:match("^(%d+)%s+(%a+)$")
    if not id then error("usage: /notebook resolve ID supported|refuted|superseded|open", 0) end
    nb:resolve(math.tointeger(id), status)
    print(("hypothesis %d: %s"):format(math.tointeger(id), status))
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
  print("evidence:")
  triage.report(triage.run{prompts = args ~= "" and {args} or nil, progress = triage.tell}, true)
end

-- ---- looking inside ------------------------------------------------------------------------------------------------------------------

local function number(x) return type(x) == "number" and ("%.5g"):format(x) or "n/a" end

local function hash_of(s) return s.hash and s.hash ~= rs.null and ("hash %s"):format(s.hash) or "" end

local function stats_line(s, bare)
  if type(s) ~= "table" then return "n/a" end
  if s.n == nil then return rs.core.json_encode(s) end
  local out = ("n %d  min %s  max %s  absmax %s  mean %s  rms %s"):format(s.n, number(s.min), number(s.max), number(s.absmax), number(s.mean), number(s.rms))
  for _, k in ipairs{"zeros", "nan", "inf"} do
    if (s[k] or 0) ~= 0 then out = out .. ("  %s %d"):format(k, s[k]) end
  end
  return bare and out or ((out .. "  " .. hash_of(s)):gsub(" +$", ""))
end

-- Taps as a table that fits its window, or where there is none as lines.
local STATS = "site|>7step|>8rank|>2n|>5min|>6max|>absmax|>3mean|>rms|9other|1hash"
local function show_stats(rows)
  local cells = {}
  for _, r in ipairs(rows) do
    local s, other = r.stats, {}
    for _, k in ipairs{"zeros", "nan", "inf"} do
      if (s[k] or 0) ~= 0 then other[#other + 1] = ("%s %d"):format(k, s[k]) end
    end
    row(cells, r.site, ("%d"):format(r.step), r.rank and ("%d"):format(r.rank) or "all", ("%d"):format(s.n), number(s.min), number(s.max), number(s.absmax), number(s.mean),
      number(s.rms), table.concat(other, ", "), s.hash and s.hash ~= rs.null and s.hash or "")
  end
  if rs.core.table(STATS, cells) then return end
  for _, r in ipairs(rows) do print(("%-28s step %d  %s%s"):format(r.site, r.step, r.rank and ("rank %d  "):format(r.rank) or "", stats_line(r.stats))) end
end

-- "rank 3" at the end of the arguments.
local function take_rank(args)
  local rest, rank = args:match("^(.-)%s*rank%s+(%w+)$")
  if not rest then return args, nil end
  return rest, math.tointeger(tonumber(rank)) or rank
end

-- A bare name means every op of that name, as a debugger takes the name of a function: "allreduce" is "*.allreduce". Patterns and whole sites stay what they are.
local function sites_of(name)
  if not name or name:find("[.*?]") then return name end
  local some = false
  for _, op in ipairs(rs.call("program").ops) do
    if op.site == name then return name end
    some = some or op.site:sub(-#name - 1) == "." .. name
  end
  return some and "*." .. name or name
end

-- The values that a tap kept of a rank, in lines that fit 80 columns.
local function print_kept(site, k, whose)
  local values, line = k.values, {}
  if type(values) ~= "table" or #values == 0 then return end
  print(("%s, %s, the first %s"):format(site, whose, count(#values, "value")))
  for i, v in ipairs(values) do
    line[#line + 1] = type(v) == "number" and ("%9.4g"):format(v) or "      n/a"
    if #line == 6 or i == #values then
      print("  " .. table.concat(line, " "))
      line = {}
    end
  end
end

local saves = {} -- site -> file that the next look is written to

function commands.tap(args)
  if args == "" then
    local any, seen = false, {}
    local sites, rows = {}, {}
    local function add(site, step, rank, stats)
      if type(stats) == "table" and stats.n ~= nil then rows[#rows + 1] = {site = site, step = step, rank = rank, stats = stats}
      else print(("%-28s step %d  %s%s"):format(site, step, rank and ("rank %d  "):format(rank) or "", stats_line(stats))) end
    end
    for _, t in ipairs(rs.call("probe.list").taps) do -- what watchpoints look at is kept too, but was not asked for
      for _, s in ipairs(rs.read(t.site)) do
        if not seen[s.site] then sites[#sites + 1] = s end
        seen[s.site] = true
      end
    end
    for _, s in ipairs(sites) do
      local r = s.records[#s.records]
      any = true
      if r == nil then print(s.site .. ": nothing yet")
      elseif r.whole ~= nil and r.whole ~= rs.null then add(s.site, r.step, nil, r.whole)
      else
        for _, k in ipairs(r.ranks) do add(s.site, r.step, k.rank, k) end
      end
    end
    show_stats(rows)
    for _, s in ipairs(sites) do
      local r = s.records[#s.records]
      for i, k in ipairs(r and r.ranks or {}) do
        if r.ranks_agree ~= true then print_kept(s.site, k, ("rank %d"):format(k.rank))
        elseif i == 1 then print_kept(s.site, k, "the same on all ranks") end
      end
    end
    for site, file in pairs(saves) do
      local r, blob = rs.call("probe.read", {site = site, what = "copy"})
      rs.tensor.of(r, blob):save(file)
      print(("%s of step %d written to %s"):format(r.site, r.step, file))
      saves[site] = nil
    end
    if not any then print("nothing is tapped") end
    return
  end
  local rest, rank = take_rank(args)
  local site, what, more = rest:match("^(%S+)%s*(%S*)%s*(.*)$")
  local o = {rank = rank}
  site = sites_of(site)
  if what == "values" then o.what, o.n = "values", math.tointeger(tonumber(more)) or error("/tap: values N expected", 0)
  elseif what == "save" then
    if more == "" then error("/tap: save FILE.npy expected", 0) end
    o.what, saves[site] = "copy", more
  elseif what ~= "" then o.what = what end
  local t = rs.tap(site, o)
  print(("tap %d on %s"):format(t.id, count(t.sites, "site")))
end

function commands.untap(args)
  local all = args == "" or args == "all" or args == "*"
  print(("%s taken away"):format(tostring(rs.untap(not all and (math.tointeger(tonumber(args)) or sites_of(args)) or nil))))
end

function commands.watch(args)
  if args == "" or args == "list" then
    local list = rs.watches()
    for _, w in ipairs(list) do
      local f = w.first
      print(("%3d  %s if %s%s: %s%s"):format(w.id, w.site, w.cond, w.action == "stop" and ", stops" or "", count(w.hits, "hit"),
        type(f) == "table" and ("; first at %s, step %d, rank %d"):format(f.site, f.step, f.rank) or ""))
    end
    if #list == 0 then print("nothing is watched") end
    return
  end
  local del = removal(args, "watch")
  if del ~= nil then return print(("%s taken away"):format(tostring(rs.unwatch(del or nil)))) end
  local rest, rank = take_rank(args)
  local site, cond, stop = rest:match("^(%S+)%s+if%s+(%S+)%s*(%a*)$")
  if not site or (stop ~= "" and stop ~= "stop") then error("usage: /watch SITES if CONDITION [stop] [rank R], /watch del [ID], or /watch", 0) end
  print(("watchpoint %d"):format(rs.watch(cond, {site = sites_of(site), rank = rank, action = stop == "stop" and "stop" or nil})))
end

commands["break"] = function(args)
  if args == "" or args == "list" then
    local list = rs.brk.list()
    for _, b in ipairs(list) do
      print(("%3d  %s %s%s: %s"):format(b.id, b.when, b.site, type(b.cond) == "string" and b.cond ~= "" and " if " .. b.cond or "", count(b.hits, "hit")))
    end
    if #list == 0 then print("there are no breakpoints") end
    return
  end
  local del = removal(args, "break")
  if del ~= nil then return print(("%s taken away"):format(tostring(rs.brk.del(del or nil)))) end
  local rest, rank = take_rank(args)
  local o = {rank = rank}
  local head, cond = rest:match("^(.-)%s+if%s+(.+)$")
  if head then rest, o.cond = head, cond end
  local site, when = rest:match("^(%S+)%s*(%a*)$")
  if not site then error("usage: /break SITES [before|after] [if COND] [rank R]", 0) end
  o.when = when ~= "" and when or nil
  site = sites_of(site)
  local id, sites = rs.brk.add(site, o)
  print(("breakpoint %d%s"):format(id, sites > 1 and (" at %d sites, %s"):format(sites, site) or ""))
end

function commands.where()
  local at = rs.where()
  if not at then return print("the engine is not stopped") end
  print(("%s %s (op %d), step %d, %s, position %d, token %s: %s"):format(at.when or "at", at.site, at.op or -1, at.step or 0, count(at.rows or 0, "row"), at.pos or 0, tostring(at.token),
    tostring(at.reason)))
end

-- "blk.0.attn.out[1][0:2:0:8]" -> site, options.
local function place(text, where)
  local site, brackets = text:match("^([^%[%]]+)(.*)$")
  if not site then error(where .. ": SITE[RANK][ROWS:COLS] expected", 0) end
  local parts = {}
  for b in brackets:gmatch("%[([%d:]*)%]") do parts[#parts + 1] = b end
  local o = {}
  if parts[1] and parts[1] ~= "" then o.rank = math.tointeger(tonumber(parts[1])) or error(where .. ": a rank expected, got " .. parts[1], 0) end
  if parts[2] then
    local r0, r1, c0, c1 = parts[2]:match("^(%d+):(%d+):(%d+):(%d+)$")
    if not r0 then error(("%s: rows and columns are written [0:2:0:8], rows 0 and 1, columns 0 to 7; not [%s]"):format(where, parts[2]), 0) end
    o.rows, o.cols = r0 .. ":" .. r1, c0 .. ":" .. c1
  end
  return site, o
end

local LINE = 6           -- values in a line: they fit 80 columns
local SHOWN = 4096       -- values of a part that was asked for by rows and columns

-- The first rows and columns, or all of a part that was named; its rows say where each line begins.
local function print_values(t, o)
  local rows, cols = t.shape[1], t.shape[2]
  if not o.rows then
    for r = 1, math.min(rows, 8) do
      local row = {}
      for c = 1, math.min(cols, LINE) do row[c] = ("%9.4g"):format(t:at(r, c)) end
      print("  " .. table.concat(row, " ") .. (cols > LINE and " ..." or ""))
    end
    if rows > 8 then print("  ...") end
    return
  end
  local row0, col0, left = math.tointeger(o.rows:match("^%d+")), math.tointeger(o.cols:match("^%d+")), SHOWN
  for r = 1, rows do
    for c = 1, cols, LINE do
      local line = {}
      for k = c, math.min(cols, c + LINE - 1) do line[#line + 1] = ("%9.4g"):format(t:at(r, k)) end
      print(("  %5d,%-5d %s"):format(row0 + r - 1, col0 + c - 1, table.concat(line, " ")))
      left = left - #line
      if left <= 0 then return print(("  ... (%d values shown; rs.tensor.read() has all of them)"):format(SHOWN - left)) end
    end
  end
end

-- The op that a name means to who looks at a held step: of those with a bare name the one that ran last; without a name the one that ran last of all.
local function last_run(name)
  if name and name:find("[.*?]") then return name end
  local at = rs.where()
  if not name and not (at and at.site) then error("usage: /print SITE[RANK][ROWS:COLS] (the engine is not stopped: no op ran last)", 0) end
  if not name and at.when == "after" then return at.site end
  local last, some, n = nil, nil, 0
  for _, op in ipairs(rs.call("program").ops) do
    if at and op.site == at.site and at.when == "before" then at = nil end -- what follows has not run
    if op.site == name then return name end
    if not name or op.site:sub(-#name - 1) == "." .. name then
      some, n = op.site, n + 1
      if at then last = op.site end
    end
    if at and op.site == at.site then at = nil end
  end
  if name and not last and n > 1 then error(("%d sites are called %s: name one, such as %s"):format(n, name, some), 0) end
  return last or some or name
end

function commands.print(args)
  local site, o = place(args ~= "" and args or last_run(), "/print")
  site = last_run(site)
  local t = rs.tensor.read(site, o)
  print((("%s, %s, [%d, %d]  %s"):format(t.name, tostring(t.layout), t.shape[1], t.shape[2], hash_of(t.stats)):gsub(" +$", "")))
  print("  " .. stats_line(t.stats, true)) -- both fit 80 columns
  print_values(t, o)
end

local NOT_FINITE = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

function commands.poke(args)
  local at, v = args:match("^(%S+)%s+(%S+)$")
  local x = v and (NOT_FINITE[v:lower()] or tonumber(v))
  if not x then error("usage: /poke SITE[RANK][ROWS:COLS] VALUE, where VALUE is a number, nan, inf or -inf", 0) end
  local site, o = place(at, "/poke")
  print(count(rs.tensor.write(site, x + 0.0, o), "value") .. " written")
end

-- The question as the model's template puts it.
local function asked(prompt)
  local segments = rs.render({{role = "user", content = prompt ~= "" and prompt or QUESTION}}, {enable_thinking = false})
  return segments
end

local SETTINGS = {mode = true, ranks = true, numerics = true, graph_guard = true, isa = true, backend = true}

-- "mode=eager,mla=off" -> a configuration of the engine.
local function configuration(text)
  local file = text:match("^file:(.+)$")
  if file then return {file = file} end
  local c, slots = {}, {}
  if text == "default" then return c end
  for _, s in ipairs(rs.patch.list()) do slots[s.slot] = true end
  for _, part in ipairs(split(text, ",")) do
    local k, v = part:match("^([^=]+)=(.+)$")
    if not k then error(("/diff: '%s' is neither NAME=VALUE nor default nor file:PATH"):format(part), 0) end
    if SETTINGS[k] then c[k] = value(v)
    elseif not slots[k:match("^[^@]+")] then
      error(("/diff: '%s' is neither a setting (mode, ranks, numerics, graph_guard, isa, backend) nor a slot of /patch"):format(k), 0)
    else
      c.patches = c.patches or {}
      c.patches[k] = v
    end
  end
  return c
end

function commands.diff(args)
  local head, prompt = args:match("^(.-)%s+%-p%s+(.+)$")
  local a, b = (head or args):match("^(%S+)%s+(%S+)$")
  if not a then error("usage: /diff A B [-p PROMPT]", 0) end
  local A, B = configuration(a), configuration(b)
  -- A dump has its own tokens, and no decode steps.
  local d = rs.diff(A, B, {segments = (prompt or not B.file) and asked(prompt or "") or nil, decode = not B.file and 3 or nil})
  local shown = 0
  for _, e in ipairs(d.ops) do
    if not e.within and shown < 10 then
      shown = shown + 1
      print(("%-28s %-7s relative L2 %s  largest %s"):format(e.site, e.phase, number(e.rel_l2), number(e.max_abs)))
    end
  end
  if d.first == nil or d.first == rs.null then print(("all %d outputs agree (tolerance %s)"):format(d.compared, number(d.tolerance)))
  else print(("%d of %d outputs are out of tolerance (%s); the first is %s"):format(d.out_of_tolerance, d.compared, number(d.tolerance), d.first.site)) end
end

function commands.replay(args)
  local r = rs.replay{segments = asked(args), decode = 3}
  for i = 1, math.min(10, #r.guilty) do
    local e = r.guilty[i]
    print(("%-28s %-7s %s: off by %s of its norm, tolerance %s; it reads %s"):format(e.site, e.phase, e.what, number(e.rel_l2), number(e.tolerance), table.concat(e.tensors or {}, ", ")))
  end
  if r.out_of_tolerance == 0 then return print(("all %d outputs agree with the reference"):format(r.compared)) end
  print(("%d of %d outputs do not agree with the reference"):format(r.out_of_tolerance, r.compared))
end

function commands.lens(args)
  local r = rs.call("lens", {segments = asked(args), top = 4})
  local cells = {}
  for _, l in ipairs(r.layers) do
    row(cells, ("%d"):format(l.layer), ("%.2f"):format(l.entropy))
    for i = 1, 4 do
      local t = l.top[i]
      row(cells, t and ("%s %.2f"):format(string.format("%q", t.piece):gsub("\\\n", "\\n"), t.p) or "")
    end
  end
  rs.core.table(">layer|>entropy|~first|~3second|~2third|~1fourth", cells)
end

function commands.experts(args)
  local r = rs.call("experts", {segments = asked(args)})
  local cells = {}
  for _, l in ipairs(r.layers) do
    local last = {}
    for i, e in ipairs(l.last) do last[i] = ("%d (%.2f)"):format(e.expert, e.weight) end
    row(cells, ("%d"):format(l.layer), ("%d"):format(l.rows), ("%d of %d"):format(l.taken, r.experts), ("%.2f"):format(l.balance), table.concat(last, ", "))
  end
  rs.core.table(">layer|>1rows|experts taken|>balance|~last row", cells)
end

-- /restart is through.
function commands.restarted() core.restarted() end

-- A command that a script has added: "NAME ARGS".
function commands.added(line)
  local name, args = line:match("^(%S+) (.*)$")
  core.commands[name].fn(args)
end

return commands
