-- notebook.lua: what is believed, and under which circumstances it was seen. One SQLite file.
--
-- A claim is a sentence with the steps that establish it: each step is a configuration put over the one that is current, a question, and what the
-- answer must be ("right" or "wrong" against the claim's reference answer). retest runs the steps again under today's configuration: what only held
-- under a broken state is refuted then.
local rs = require "rs"
local exp = require "exp"
local core = rs.core
local want = require("check").want

local notebook = {}
---@class rs.notebook.book
local Notebook = {}
Notebook.__index = Notebook
Notebook.__name = "rs.notebook"

local SCHEMA = {
  [[CREATE TABLE IF NOT EXISTS claim(id INTEGER PRIMARY KEY, statement TEXT NOT NULL, steps TEXT NOT NULL, question TEXT NOT NULL, reference TEXT NOT NULL,
     model TEXT NOT NULL, config TEXT NOT NULL, status TEXT NOT NULL, note TEXT, made INTEGER NOT NULL, tested INTEGER)]],
  [[CREATE TABLE IF NOT EXISTS hypothesis(id INTEGER PRIMARY KEY, statement TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'open', made INTEGER NOT NULL)]],
  [[CREATE TABLE IF NOT EXISTS task(id INTEGER PRIMARY KEY, text TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'open', hypothesis INTEGER, experiment INTEGER,
     made INTEGER NOT NULL)]],
  [[CREATE TABLE IF NOT EXISTS experiment(id INTEGER PRIMARY KEY, name TEXT NOT NULL, result TEXT NOT NULL, sentences TEXT NOT NULL, model TEXT NOT NULL,
     made INTEGER NOT NULL)]],
  [[CREATE TABLE IF NOT EXISTS unfinished(what TEXT PRIMARY KEY, state TEXT NOT NULL)]],
}

local function default_path()
  local state = os.getenv("XDG_STATE_HOME")
  if not state or state == "" then state = (os.getenv("HOME") or ".") .. "/.local/state" end
  os.execute(("mkdir -p '%s/rankscope' 2>/dev/null"):format(state:gsub("'", "'\\''")))
  return state .. "/rankscope/notebook.db"
end

--- Open a notebook file, the user's own by default.
---@param path? string
---@return rs.notebook.book
---> local p = os.tmpname(); local nb = rs.notebook.open(p); nb:task("look at the loader"); print(#nb:tasks()); nb:close(); os.remove(p)
function notebook.open(path)
  if path ~= nil then want("notebook.open", "path", path, "string") end
  local nb = setmetatable({path = path or default_path()}, Notebook)
  nb.db = core.notebook(nb.path)
  for _, sql in ipairs(SCHEMA) do nb.db:run(sql) end
  return nb
end

--- Close it.
function Notebook:close() self.db:close() end
Notebook.__close = Notebook.close

local function insert(db, table_name, row)
  local names, marks, values, n = {}, {}, {}, 0
  for k, v in pairs(row) do
    n = n + 1
    names[n], marks[n], values[n] = k, "?", v
  end
  db:run(("INSERT INTO %s(%s) VALUES(%s)"):format(table_name, table.concat(names, ","), table.concat(marks, ",")), table.unpack(values, 1, n))
  return db:run("SELECT last_insert_rowid() AS id")[1].id
end

local function model_hash()
  local m = rs.call("info").model
  if m == nil then error("no model is open", 3) end
  return m.hash
end

-- Run one step on top of the current configuration -> did the answer come out as expected, what it was.
local function step_holds(step, question, reference)
  local text = exp.restoring(function()
    exp.apply(step.config or {})
    return rs.ask(question, {max_tokens = 40}).text
  end)
  return (text == reference) == (step.expect == "right"), text
end

local function all_hold(steps, question, reference)
  for _, step in ipairs(steps) do
    local ok, text = step_holds(step, question, reference)
    if not ok then return false, ("with %s the answer is \"%s\", expected to be %s"):format(exp.name(step.config or {}), text, step.expect) end
  end
  return true, "every step came out as stated"
end

--- Record a claim: {statement=, steps={{config={mla="off"}, expect="right"}, ...}, question=, reference=}. The steps are run first.
---@param o table
---@return integer id
---@return string status
---@return string note what came out otherwise
function Notebook:claim(o)
  want("claim", "o", o, "table")
  for _, k in ipairs{"statement", "steps", "question", "reference"} do
    if o[k] == nil then error("claim: " .. k .. " is missing", 2) end
  end
  local ok, note = all_hold(o.steps, o.question, o.reference)
  local status = ok and "holds" or "refuted"
  local id = insert(self.db, "claim", {statement = o.statement, steps = core.json_encode(o.steps), question = o.question, reference = o.reference, model = model_hash(),
                                       config = core.json_encode(rs.state().patches), status = status, note = note, made = os.time(), tested = os.time()})
  return id, status, note
end

--- Run a claim's steps again under the present configuration; all claims without an id -> list of {id=, statement=, before=, status=, note=}.
---@param id? integer
---@return table[]
function Notebook:retest(id)
  local rows = id and self.db:run("SELECT * FROM claim WHERE id = ?", id) or self.db:run("SELECT * FROM claim ORDER BY id")
  if id and #rows == 0 then error("no claim " .. id, 2) end
  local out = {}
  for _, c in ipairs(rows) do
    local status, note
    if c.model ~= model_hash() then
      status, note = "no longer testable", "another model is open"
    else
      local ran, ok, why = pcall(all_hold, core.json_decode(c.steps), c.question, c.reference)
      if not ran then
        if tostring(ok):find("interrupted", 1, true) then error(ok, 0) end
        status, note = "no longer testable", tostring(ok)
      else
        status, note = ok and "holds" or "refuted", why
      end
    end
    self.db:run("UPDATE claim SET status = ?, note = ?, tested = ? WHERE id = ?", status, note, os.time(), c.id)
    out[#out + 1] = {id = c.id, statement = c.statement, before = c.status, status = status, note = note}
  end
  return out
end

--- All claims; refuted and untestable ones first.
---@return table[]
function Notebook:claims() return self.db:run("SELECT * FROM claim ORDER BY status = 'holds', id") end

--- Record a hypothesis, open at first.
---@param statement string
---@return integer id
function Notebook:hypothesis(statement) want("hypothesis", "statement", statement, "string") return insert(self.db, "hypothesis", {statement = statement, made = os.time()}) end

local function must_exist(db, kind, id)
  if #db:run("SELECT id FROM " .. kind .. " WHERE id = ?", id) == 0 then error(("there is no %s %s in the notebook"):format(kind, tostring(id)), 0) end
end

local HYPOTHESIS = {open = true, supported = true, refuted = true, superseded = true}
--- Settle a hypothesis: open, supported, refuted or superseded. Tasks tied to it change with it, so that no list goes stale.
---@param id integer
---@param status string
function Notebook:resolve(id, status)
  if not HYPOTHESIS[status] then error("a hypothesis is open, supported, refuted or superseded", 2) end
  must_exist(self.db, "hypothesis", id)
  self.db:run("UPDATE hypothesis SET status = ? WHERE id = ?", status, id)
  local task = status == "open" and "open" or status == "superseded" and "superseded" or "done"
  self.db:run("UPDATE task SET status = ? WHERE hypothesis = ?", task, id)
end
--- All hypotheses.
---@return table[]
function Notebook:hypotheses() return self.db:run("SELECT * FROM hypothesis ORDER BY id") end

--- Record a task. Tied to a hypothesis (its id) or an experiment (its name) it changes state with that.
---@param text string
---@param tie? integer|string
---@return integer id
function Notebook:task(text, tie)
  want("task", "text", text, "string")
  if tie ~= nil and math.type(tie) ~= "integer" and type(tie) ~= "string" then error("task: tie: a hypothesis' id or an experiment's name expected", 2) end
  local by_name = type(tie) == "string"
  return insert(self.db, "task", {text = text, hypothesis = not by_name and tie or nil, experiment = by_name and tie or nil, made = os.time()})
end
local TASK = {open = true, ["in progress"] = true, done = true, superseded = true}
--- Set a task's state: open, in progress, done or superseded.
---@param id integer
---@param status string
function Notebook:task_status(id, status)
  if not TASK[status] then error("a task is open, in progress, done or superseded", 2) end
  must_exist(self.db, "task", id)
  self.db:run("UPDATE task SET status = ? WHERE id = ?", status, id)
end
--- All tasks.
---@return table[]
function Notebook:tasks() return self.db:run("SELECT * FROM task ORDER BY id") end

--- Keep the result of exp.run.
---@param name string
---@param r table
---@return integer id
function Notebook:experiment(name, r)
  want("experiment", "name", name, "string")
  want("experiment", "r", r, "table")
  self.db:run("UPDATE task SET status = 'done' WHERE experiment = ?", name)
  return insert(self.db, "experiment", {name = name, result = exp.table(r), sentences = table.concat(r.sentences, "\n"), model = model_hash(), made = os.time()})
end
--- All experiments.
---@return table[]
function Notebook:experiments() return self.db:run("SELECT * FROM experiment ORDER BY id") end

--- Keep a table of what was stopped, to go on from; nil forgets it.
---@param what string
---@param state? table
function Notebook:keep(what, state)
  want("keep", "what", what, "string")
  if state == nil then self.db:run("DELETE FROM unfinished WHERE what = ?", what)
  else self.db:run("INSERT OR REPLACE INTO unfinished(what, state) VALUES(?, ?)", what, core.json_encode(want("keep", "state", state, "table"))) end
end

--- What was kept, or nil.
---@param what string
---@return table|nil
function Notebook:kept(what)
  local rows = self.db:run("SELECT state FROM unfinished WHERE what = ?", want("kept", "what", what, "string"))
  return rows[1] and core.json_decode(rows[1].state) or nil
end

--- Everything as Markdown.
---@return string
function Notebook:markdown()
  local out = {"# Notebook", ""}
  local function add(...) out[#out + 1] = string.format(...) end
  add("## Claims")
  for _, c in ipairs(self:claims()) do add("- **%s** (%s, %s): %s", c.statement, c.status, os.date("!%Y-%m-%d %H:%M", c.tested), c.note or "") end
  add("") add("## Hypotheses")
  for _, h in ipairs(self:hypotheses()) do add("- %s (%s)", h.statement, h.status) end
  add("") add("## Tasks")
  for _, t in ipairs(self:tasks()) do add("- [%s] %s (%s)", t.status == "done" and "x" or " ", t.text, t.status) end
  for _, e in ipairs(self:experiments()) do
    add("") add("## Experiment: %s", e.name) add("")
    add("```\n%s\n```", e.result) add("")
    add("%s", (e.sentences:gsub("[^\n]+", "- %0")))
  end
  return table.concat(out, "\n") .. "\n"
end

return notebook
