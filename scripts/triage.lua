-- triage.lua: find the op that makes the output bad.
--
--   rankscope scripts/triage.lua [--model FILE] [--ranks N] [--mode MODE] [--patch SLOT=IMPL] [--no-guard] [--all] [QUESTION...]
--
-- The shipped model and some of its questions by default. Exit status 0 whatever is found; the last lines are the verdict.
local triage = require "triage"

local open, prompts, patches, all = {}, {}, {}, false
local i = 1
local function operand()
  i = i + 1
  return arg[i] or error(arg[i - 1] .. " needs a value", 0)
end
while arg[i] do
  local a = arg[i]
  if a == "--model" then open.path = operand()
  elseif a == "--ranks" then open.ranks = math.tointeger(tonumber(operand())) or error("--ranks: a number expected", 0)
  elseif a == "--mode" then open.mode = operand()
  elseif a == "--no-guard" then open.graph_guard = false
  elseif a == "--all" then all = true
  elseif a == "--patch" then
    local slot, impl = operand():match("^([^=]+)=(.+)$")
    if not slot then error("--patch: SLOT=IMPL expected", 0) end
    patches[slot] = impl
  elseif a:sub(1, 2) == "--" then error("unknown option " .. a, 0)
  else prompts[#prompts + 1] = a end
  i = i + 1
end

rs.model.open(open)
for slot, impl in pairs(patches) do rs.patch.set(slot, impl) end
triage.report(triage.run{prompts = #prompts > 0 and prompts or nil, all = all,
  progress = function(name, seconds) io.stderr:write(("%6.2f s  %s\n"):format(seconds, name)) end})
