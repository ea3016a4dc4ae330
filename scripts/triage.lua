-- triage.lua: find the op that makes the output bad.
--
--   rankscope scripts/triage.lua [--model FILE] [--ranks N] [--mode MODE] [--patch SLOT=IMPL] [--no-guard] [--all] [QUESTION...]
--
-- The shipped model and some of its questions by default. Exit status 0 whatever is found; the last lines are the verdict.
local triage = require "triage"

local opt, prompts = require "args".read{["--model"] = "text", ["--ranks"] = "number", ["--mode"] = "text", ["--patch"] = "patch", ["--no-guard"] = "flag",
                                       ["--all"] = "flag"}
local open = {path = opt.model, ranks = opt.ranks, mode = opt.mode}
if opt["no-guard"] then open.graph_guard = false end

rs.model.open(open)
for slot, impl in pairs(opt.patch or {}) do rs.patch.set(slot, impl) end
triage.report(triage.run{prompts = #prompts > 0 and prompts or nil, all = opt.all or false,
  progress = function(name, seconds) io.stderr:write(("%6.2f s  %s\n"):format(seconds, name)) end})
