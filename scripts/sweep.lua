-- sweep.lua: one option through its values: verdict, agreement with the first value's answers, speed with its spread; in turns, so that none has the machine
-- to itself.
--
--   rankscope scripts/sweep.lua NAME=V1,V2,... [--model FILE] [--ranks N] [--repeats N] [QUESTION...]
--
-- NAME is a setting (mode, ranks, numerics) or a patch slot. Example: rankscope scripts/sweep.lua ranks=1,2,4,8
local exp = rs.exp
local opt, questions = require "args".read{["--model"] = "text", ["--ranks"] = "number", ["--repeats"] = "number"}
local open, repeats, name, levels = {path = opt.model, ranks = opt.ranks}, opt.repeats or 3, nil, {}
local first = table.remove(questions, 1)
if first then
  local list
  name, list = first:match("^([^=%s]+)=(.+)$")
  if not name then error("NAME=V1,V2,... expected, got " .. first, 0) end
  for v in list:gmatch("[^,]+") do levels[#levels + 1] = math.tointeger(tonumber(v)) or v end
end
if not name or #levels < 2 then error("usage: rankscope scripts/sweep.lua NAME=V1,V2,... [QUESTION...]", 0) end
if #questions == 0 then questions = {"What is the capital of France?", "Tell me a story."} end

rs.model.open(open)
local r = exp.run{factors = {[name] = levels}, prompts = questions, repeats = repeats, max_tokens = 64,
  progress = function(done, total, left) io.stderr:write(("%d of %d, %.0f s left\n"):format(done, total, left)) end}
print(exp.table(r))
for _, s in ipairs(r.sentences) do print(s) end
