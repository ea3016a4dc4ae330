-- compare-quants.lua: how far one file's predictions are from another's: KL divergence per token, and how often the likeliest token is another one.
--
--   rankscope scripts/compare-quants.lua A.gguf B.gguf [--text FILE] [--tokens N] [--ranks N] [--patch-a SLOT=IMPL] [--patch-b SLOT=IMPL]
--
-- A is the one that is held to be right, "-" the shipped model. The files must have the same vocabulary. The text is cut into pieces of at most 256 tokens.
local core = rs.core
local opt, files = require "args".read{["--text"] = "text", ["--tokens"] = "number", ["--ranks"] = "number", ["--patch-a"] = "patch", ["--patch-b"] = "patch"}
opt.tokens, opt.ranks = opt.tokens or 1024, opt.ranks or 1
local patches = {a = opt["patch-a"] or {}, b = opt["patch-b"] or {}}
if #files ~= 2 then error("usage: rankscope scripts/compare-quants.lua A.gguf B.gguf [--text FILE] [--tokens N]", 0) end

local CHATS = {{"What is the capital of France?", "The capital of France is Paris."}, {"What is 23 + 45?", "23 + 45 is 68."},
               {"Count from 17 to 25.", "17, 18, 19, 20, 21, 22, 23, 24, 25"}, {"What month comes after March?", "April comes after March."}}

-- Token ids of what is compared: a file's text, or some chats in the model's template.
local function texts()
  local out = {}
  if opt.text then
    local f, why = io.open(opt.text)
    if not f then error(why, 0) end
    out[1] = rs.encode(f:read("a"))
    f:close()
    return out
  end
  for k, c in ipairs(CHATS) do
    local ok, s = pcall(rs.render, {{role = "user", content = c[1]}, {role = "assistant", content = c[2]}}, {enable_thinking = false, add_generation_prompt = false})
    out[k] = rs.call("encode", {segments = ok and s or {{text = c[1] .. " " .. c[2], special = false}}}).ids
  end
  return out
end

-- Opens the file -> info of the model.
local function open(file, patch)
  local m = rs.model.open{path = file ~= "-" and file or nil, ranks = opt.ranks, patches = next(patch) and patch or nil}
  return m:info().model
end

-- Logits of every piece.
local function predictions(pieces)
  local out = {}
  for k, ids in ipairs(pieces) do
    local r = rs.forward{ids = ids, logits = "all"}
    out[k] = {blob = r.blob, at = r.logits.offset, rows = r.logits.rows, vocab = r.vocab, argmax = r.argmax_each, nll = r.nll}
  end
  return out
end

local a = open(files[1], patches.a)
local pieces, n = {}, 0
for _, ids in ipairs(texts()) do
  for at = 1, #ids, 256 do
    local piece = table.move(ids, at, math.min(#ids, at + 255, at + opt.tokens - n - 1), 1, {})
    if #piece >= 2 then
      pieces[#pieces + 1], n = piece, n + #piece
    end
  end
end
if #pieces == 0 then error("no text to compare on", 0) end
local pa = predictions(pieces)
local b = open(files[2], patches.b)
if a.vocab ~= b.vocab then error(("the vocabularies differ: %d and %d tokens"):format(a.vocab, b.vocab), 0) end
local pb = predictions(pieces)

local kls, same, nll_a, nll_b, count = {}, 0, 0, 0, 0
for k, p in ipairs(pa) do
  local q = pb[k]
  for row = 0, p.rows - 1 do
    kls[#kls + 1] = core.kl(p.blob, q.blob, p.at + row * p.vocab, p.vocab)
    same = same + (p.argmax[row + 1] == q.argmax[row + 1] and 1 or 0)
  end
  local w = #pieces[k] - 1
  nll_a, nll_b, count = nll_a + p.nll * w, nll_b + q.nll * w, count + w
end
table.sort(kls)
local sum = 0
for _, v in ipairs(kls) do sum = sum + v end
local function types(m)
  local out = {}
  for t, c in pairs(m.types) do out[#out + 1] = t .. " x " .. c end
  table.sort(out)
  return table.concat(out, ", ")
end
print(("A: %s (%s)"):format(a.path, types(a)))
print(("B: %s (%s)"):format(b.path, types(b)))
print(("tokens            %d"):format(#kls))
print(("KL(A || B), nats  mean %.3g, median %.3g, 99 %% %.3g, largest %.3g"):format(math.max(0, sum / #kls), math.max(0, kls[#kls // 2 + 1]), math.max(0, kls[math.max(1, #kls * 99 // 100)]), math.max(0, kls[#kls])))
print(("same first token  %.2f %%"):format(100 * same / #kls))
print(("perplexity        A %.4f, B %.4f (%+.3f %%)"):format(math.exp(nll_a / count), math.exp(nll_b / count), 100 * (math.exp((nll_b - nll_a) / count) - 1)))
