-- sensitivity.lua: which tensors matter? Each is swapped for that of another file, for instance one written by `rankscope quantize`, and ranked by what that
-- does to the perplexity.
--
--   rankscope scripts/sensitivity.lua OTHER.gguf [--model FILE] [--ranks N] [--by tensor|layer|kind] [--text FILE] [--tokens N] [--top N] [GLOB]
--
-- by layer: blk.3.* together; by kind: *.ffn_down_exps.weight together. GLOB limits it to some tensors. Tensors of equal bytes are left out.
local opt, rest = require "args".read{["--model"] = "text", ["--ranks"] = "number", ["--tokens"] = "number", ["--top"] = "number", ["--text"] = "text",
                                    ["--by"] = {"tensor", "layer", "kind"}}
opt.tokens, opt.by, opt.top = opt.tokens or 512, opt.by or "tensor", opt.top or 20
local open, other, glob = {path = opt.model, ranks = opt.ranks}, rest[1], rest[2]
if rest[3] then error("one GLOB only", 0) end
if not other then error("usage: rankscope scripts/sensitivity.lua OTHER.gguf [--by tensor|layer|kind] [GLOB]", 0) end

local CHATS = {{"What is the capital of France?", "The capital of France is Paris."}, {"What is 23 + 45?", "23 + 45 is 68."},
               {"Count from 17 to 25.", "17, 18, 19, 20, 21, 22, 23, 24, 25"}, {"What month comes after March?", "April comes after March."},
               {"What is the capital of Italy?", "The capital of Italy is Rome."}, {"What is 7 + 8?", "7 + 8 is 15."}}

-- Pieces of text as ids: of a file, or chats in the model's template.
local function pieces()
  local out, n = {}, 0
  local function add(ids)
    for at = 1, #ids, 256 do
      local piece = table.move(ids, at, math.min(#ids, at + 255, at + opt.tokens - n - 1), 1, {})
      if #piece >= 2 then out[#out + 1], n = piece, n + #piece end
    end
  end
  if opt.text then
    local f, why = io.open(opt.text)
    if not f then error(why, 0) end
    add(rs.encode(f:read("a")))
    f:close()
  else
    for _, c in ipairs(CHATS) do
      local ok, s = pcall(rs.render, {{role = "user", content = c[1]}, {role = "assistant", content = c[2]}}, {enable_thinking = false, add_generation_prompt = false})
      add(rs.call("encode", {segments = ok and s or {{text = c[1] .. " " .. c[2], special = false}}}).ids)
    end
  end
  if #out == 0 then error("no text to measure on", 0) end
  return out
end

local m = rs.model.open(open)
local text = pieces()

local function nll()
  local sum, n = 0, 0
  for _, ids in ipairs(text) do
    sum, n = sum + rs.forward{ids = ids, logits = "none"}.nll * (#ids - 1), n + #ids - 1
  end
  return sum / n, n
end

-- Globs to try, with what they are called.
local groups, seen = {}, {}
for _, t in ipairs(m:weights(glob).tensors) do
  local key = t.name
  if opt.by == "layer" then key = t.name:match("^(blk%.%d+%.)") and t.name:match("^(blk%.%d+%.)") .. "*" or t.name
  elseif opt.by == "kind" then key = t.name:gsub("^blk%.%d+%.", "blk.*.") end
  if not seen[key] then
    seen[key] = true
    groups[#groups + 1] = key
  end
end

if #groups == 0 then error("no tensor matches " .. (glob or "*"), 0) end

-- What a swap does to the mean negative log-likelihood; nil where nothing differs.
local function effect(pattern)
  local before = rs.state().generation
  return rs.core.finally(function()
    local r = m:weights(pattern, other)
    local types, same, bytes = {}, true, 0
    for _, t in ipairs(r.tensors) do
      local what = t.file_type == t.type and t.type or t.file_type .. " to " .. t.type
      if not t.same then types[what] = true end
      same = same and t.same
      bytes = bytes + t.bytes
    end
    if same then return nil end
    local list = {}
    for k in pairs(types) do list[#list + 1] = k end
    table.sort(list)
    return {name = pattern, nll = nll(), types = table.concat(list, ", "), bytes = bytes}
  end, function()
    if rs.state().generation ~= before then rs.patch.revert() end
  end)
end

local own, n = nll()
local rows, equal, t0, said = {}, 0, rs.now(), rs.now()
for k, g in ipairs(groups) do
  local e = effect(g)
  if e then rows[#rows + 1] = e else equal = equal + 1 end
  if rs.now() - said > 2 then
    said = rs.now()
    io.stderr:write(("%d of %d, %.0f s left\n"):format(k, #groups, (said - t0) / k * (#groups - k)))
  end
end
if #rows == 0 then
  print(("no tensor differs (%d compared)"):format(equal))
  return
end
table.sort(rows, function(a, b) return a.nll > b.nll end)
print(("perplexity of %s: %.4f over %d tokens; %d swapped one at a time, %d of equal bytes left out"):format(m:info().model.name or "the model", math.exp(own), n, #rows,
  equal))
print(("%-44s %12s %12s %10s  %s"):format("swapped", "perplexity", "change", "MB", "type"))
for k = 1, math.min(opt.top, #rows) do
  local r = rows[k]
  print(("%-44s %12.4f %+11.3f %% %10.2f  %s"):format(r.name, math.exp(r.nll), 100 * (math.exp(r.nll - own) - 1), r.bytes / 1e6, r.types))
end
if #rows > opt.top then print(("... and %d that matter less"):format(#rows - opt.top)) end
local all = glob == nil and opt.by ~= "layer" and effect("*")
if all then print(("all together: perplexity %.4f (%+.3f %%)"):format(math.exp(all.nll), 100 * (math.exp(all.nll - own) - 1))) end
