-- What panels of the console show that is written in Lua.
local rs = require "rs"
local notebook = require "notebook"
local board = {}

local function same(a, b)
  for k, v in pairs(a) do if b[k] ~= v then return false end end
  for k in pairs(b) do if a[k] == nil then return false end end
  return true
end

local function list(config)
  local out = {}
  for k, v in pairs(config) do out[#out + 1] = k .. "=" .. tostring(v) end
  table.sort(out)
  return #out > 0 and table.concat(out, " ") or "defaults"
end

--- Print claims and open hypotheses; first the claims that were tested under other patches than now, or do not hold.
---@param patches string those that are away from default now, as JSON
function board.notebook(patches)
  local now = rs.core.json_decode(patches)
  local nb <close> = notebook.open()
  local stale, fresh = {}, {}
  for _, c in ipairs(nb:claims()) do
    local made = rs.core.json_decode(c.config)
    local under = same(made, now) and "" or (" under %s: /retest %d"):format(list(made), c.id)
    local line = ("%-9s %d. %s%s"):format(under ~= "" and c.status == "holds" and "STALE" or c.status, c.id, c.statement, under)
    local to = (under ~= "" or c.status ~= "holds") and stale or fresh
    to[#to + 1] = line
  end
  for _, l in ipairs(stale) do print(l) end
  for _, l in ipairs(fresh) do print(l) end
  if #stale + #fresh == 0 then print("no claims; /claim add records one") end
  for _, h in ipairs(nb:hypotheses()) do
    if h.status == "open" then print(("open      hypothesis %d. %s"):format(h.id, h.statement)) end
  end
end

return board
