-- story.lua: the story that rankscope exists for, on the shipped model at 8 ranks: what a person saw, what it seemed to mean, what it meant.
--
--   rankscope scripts/story.lua [NOTEBOOK.db]
local exp, notebook = rs.exp, rs.notebook
local QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
local PROMPTS = {QUESTION, "What is 23 + 45?", "Count from 17 to 25."}

local function say(fmt, ...) print(fmt:format(...)) end
local function ask() return rs.ask(QUESTION, {max_tokens = 40}) end
local function right() return ask().text == ANSWER end

local t0 = rs.now()
rs.model.open{ranks = 8, mode = "graph"}
local path = arg[1] or os.tmpname()
local nb = notebook.open(path)

say("1. The symptom. The projections are joined in file order, as the loader of the story did.")
rs.patch.set("slot_order", "file")
local r = ask()
say("   slot_order=file: \"%s\"%s", r.text, r.verdict and (" (health: " .. r.verdict .. ")") or "")

say("2. The seductive clue. With mla=off the text is right, so the attention op gets the blame.")
rs.patch.set("mla", "off")
say("   slot_order=file, mla=off: \"%s\"", ask().text)
rs.patch.revert()
local wrong, status = nb:claim{statement = "the attention op produces the garbage: without it the text is right", question = QUESTION, reference = ANSWER,
                               steps = {{config = {}, expect = "wrong"}, {config = {mla = "off"}, expect = "right"}}}
say("   claim %d recorded: %s", wrong, status)

say("3. The factorial: everything that could matter, at once, each arm on the loaded model.")
rs.patch.reset()
rs.set{graph_guard = false}
local e = exp.run{factors = {slot_order = {"slot", "file"}, qkv_a = {"fused", "split"}, mla = {"absorbed", "expanded", "direct"}, mode = {"eager", "graph"}},
                  prompts = PROMPTS, max_tokens = 24}
print(exp.table(e))
print(exp.effects_text(e))
for _, s in ipairs(e.sentences) do say("   %s", s) end
nb:experiment("story", e)
rs.set{graph_guard = true}

say("4. Bisect over the patches that were away from default when it broke.")
local found, probes = exp.bisect({slot_order = "file", ["allreduce.dtype"] = "bf16", allreduce = "tree", mla = "absorbed", matmul = "f32"}, function() return not right() end,
  function(c, bad) say("   %-70s %s", exp.name(c), bad and "garbage" or "right") end)
say("   the smallest set that is garbage: %s (%d probes)", exp.name(found), probes)

say("5. The fix, and the claims again.")
rs.patch.reset()
say("   slot_order=slot: \"%s\"", ask().text)
for _, c in ipairs(nb:retest()) do say("   claim %d: %s -> %s (%s): %s", c.id, c.before, c.status, c.statement, c.note) end

say("6. What graphs were worth, once nothing stood in their way.")
for _, mode in ipairs{"eager", "graph", "eager", "graph"} do
  rs.mode(mode)
  local g = rs.generate{prompt = "[gMASK]<sop><|user|>Tell me a story<|assistant|></think>", max_tokens = 128, ignore_eos = true}
  say("   %-5s  %7.1f tokens/s, all-reduce %4.1f us mean, %4.1f %% of the step%s", mode, g.tok_per_s, g.allreduce.mean_us, g.allreduce.share * 100,
    g.allreduce.simulated and " (simulated)" or "")
end
say("done in %.1f s; notebook %s", rs.now() - t0, arg[1] and path or "discarded")
nb:close()
if not arg[1] then os.remove(path) end
