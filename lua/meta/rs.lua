---@meta
-- What language servers read about the module rs. Made by scripts/lua-docs.lua.

---@class rs.task
local rs_task = {}

---@class rs.model
local rs_model = {}

---@class rs.session
local rs_session = {}

---@class rs.tap
local rs_tap = {}

---@class rs.tensor
local rs_tensor = {}

---@class rs.notebook.book
local rs_notebook_book = {}

---@class rs.patch.call
---@field rows integer rows of y: of the batch, or (row, expert) pairs
---@field x rs.patch.tensor the input; the same as y where the op works in place (rope, kv_store, allreduce); embed has none
---@field x2 rs.patch.tensor index_scores: the heads' weights; other ops have none
---@field y rs.patch.tensor the output, which holds what the op finds there
---@field w rs.patch.weight[] weights
---@field ranks rs.patch.tensor[] allreduce: every rank's summand; y is the sum for all of them
---@field site string
---@field layer integer -1 outside the layers
---@field rank integer from 0
---@field n_ranks integer
---@field eps number
---@field accumulate boolean linear: add to y
---@field head_dim integer
---@field rope_dim integer
---@field kv_lora integer
---@field v_head integer
---@field n_heads integer of this rank; in ops of the indexer these are its heads, and head_dim is theirs
---@field scale number of attention scores, index_scores; router: of the weights
---@field top_k integer index_scores, index_topk: rows of up to so many positions look at all of them
---@field interleaved boolean index_q, index_store: pairs to rotate are neighbours, else rope_dim / 2 apart; a head of the indexer has them first
---@field n_experts integer
---@field n_used integer
---@field n_groups integer
---@field n_groups_used integer
---@field sigmoid boolean router: the gating function, else softmax
---@field normalise boolean router: weights of the chosen ones are divided by their sum
---@field experts integer moe_gate_up, moe_down: how many this rank has; expert e is matrix e of the weights
local rs_patch_call = {}

---@class rs.patch.tensor
---@field rows integer
---@field width integer
local rs_patch_tensor = {}

---@class rs.patch.weight
---@field rows integer
---@field k integer values of a row
---@field mats integer matrices: mla, one per head
local rs_patch_weight = {}

rs = {}
rs.model = rs.model or {}
rs.patch = rs.patch or {}
rs.time = rs.time or {}
rs.op = rs.op or {}
rs.cmd = rs.cmd or {}
rs.key = rs.key or {}
rs.panel = rs.panel or {}
rs.brk = rs.brk or {}
rs.tensor = rs.tensor or {}
rs.bench = rs.bench or {}
rs.exp = rs.exp or {}
rs.notebook = rs.notebook or {}
local triage = {}

---Print values as text, one after the other.
---@param ... any
function rs.show(...) end

---Seconds of a monotonic clock.
---@return number
function rs.now() end

---Wait; Ctrl-C ends it.
---@param seconds number
function rs.sleep(seconds) end

---Any method of the protocol (docs/protocol.md) -> reply, blob.
---@param method string
---@param args? table
---@param timeout_s? number
---@return table reply
---@return string|nil blob
function rs.call(method, args, timeout_s) end

---Use a running engine instead of one in this process: by its name, or the only one.
---@param name? string
function rs.connect(name) end

---Call fn(event) for every event of a type ("token", "done", "state", "stopped", "log", ...) that a wait comes across. It runs as a task of its own: it may
---wait, and then goes on beside who waited first. Events have type, id (the stream's) and time_us; tokens have token (-1: text without one), text and
---thinking, the others data: what docs/protocol.md says of them (done: event.data.stop). In the console nobody waits while you chat; a task that does so is
---rs.spawn(function() while true do rs.next_event() end end).
---@param kind string
---@param fn fun(event: table)
function rs.on(kind, fn) end

---The next event of the engine that nobody waits for otherwise, or nil when none came in time.
---@param timeout_s? number
---@return table|nil
function rs.next_event(timeout_s) end

---Run fn(...) as a task beside this one: it runs until it waits, then both take turns wherever one waits. Scripts, lines at the prompt and handlers are
---tasks too.
---@param fn function
---@return rs.task
function rs.spawn(fn, ...) end

---Wait for its end -> what its function gave; what it raised is raised.
---@param timeout_s? number
---@return any ...
function rs_task:wait(timeout_s) end

---End it: where it waits or runs an error is raised in it.
function rs_task:cancel() end

---Open a model. Options: path (the shipped one by default, with 8 ranks), ranks, mode, ctx, patches {slot = impl}, numerics, graph_guard, max_seqs,
---batch_tokens.
---@param opts? table
---@return rs.model
function rs.model.open(opts) end

---The model that is open now, or nil.
---@return rs.model|nil
function rs.model.current() end

---What method "info" says, asked again.
---@return table
function rs_model:info() end

---Take tensors of the loaded model from another file, between two steps: glob over tensor names, path of a model file. Types may differ, shapes may not.
---rs.patch.revert() takes it back. Without a path: what the tensors are now.
---@param glob? string
---@param path? string
---@return table with a path: donor, generation, cost, took_ms, resharded, tensors; without: tensors, donors. Tensors have name, type, file_type, from, bytes, same
function rs_model:weights(glob, path) end

---Close it; objects that belong to it are errors from then on.
function rs_model:close() end

---The mode, "graph" or "eager"; with an argument, set it -> took_ms.
---@param mode? string
---@return string|number
function rs.mode(mode) end

---The number of ranks; with an argument, shard the loaded model anew -> took_ms.
---@param n? integer
---@return number
function rs.ranks(n) end

---Settings: mode, ranks, numerics, graph_guard, spec -> the new state.
---@param opts table
---@return table
function rs.set(opts) end

---What the status line shows: mode, ranks, patches, generation, running, verdict, ...
---@return table
function rs.state() end

---All slots with their implementations.
---@return table
function rs.patch.list() end

---Choose an implementation, for all sites or those of a glob -> {generation=, cost=, took_ms=}.
---@param slot string
---@param impl string
---@param site? string
---@return table
function rs.patch.set(slot, impl, site) end

---Back to the generation before, or to generation n.
---@param n? integer
---@return table
function rs.patch.revert(n) end

---All slots to their defaults.
function rs.patch.reset() end

---Load a patch from a file in C (.c), Lua (.lua, see "Patches in Lua") or CUDA C (.cu): compiled and tested in a process of its own, then known to the
---slot "user". Options: activate (use it at once), site (a glob; where).
---@param path string
---@param opts? table
---@return table name, kind, help, active, selftest_worst, staged_ms
function rs.patch.load(path, opts) end

---Compare a loaded patch with what it would replace, in the steps of whatever runs from now on; what is used stays what it is. Options: site (a glob),
---steps (64). At the end a log event says what was found.
---@param name string
---@param opts? table
---@return table report as rs.patch.shadowed gives it
function rs.patch.shadow(name, opts) end

---What the shadow that runs, or the last one, has found, or nil: impl, site, running, ended, steps, compared, worst (relative L2), worst_site, mean, ops ...
---@return table|nil
function rs.patch.shadowed() end

---Put the patch that was shadowed in where it was shadowed, unless it was further apart than `limit` (relative L2).
---@param limit? number
---@return table generation, cost, took_ms, impl, site, worst
function rs.patch.promote(limit) end

---Every change: generation, slot, from, to, time_us, by, took_ms.
---@return table
function rs.patch.history() end

---Start an answer and do not wait. Options: prompt (special tokens are parsed) or segments or ids, temperature (0), max_tokens, top_k, top_p, min_p,
---typical_p, seed, repeat_penalty, frequency_penalty, presence_penalty, stop, ignore_eos, session, thinking.
---@param opts table
---@return integer stream
function rs.submit(opts) end

---Wait for streams -> a table from id to {text=, thinking=, ids=, tokens=, stop=, verdict=, tok_per_s=, ...}.
---@param streams integer[]
---@param on_token? fun(event: table)
---@return table
function rs.wait(streams, on_token) end

---An answer; options of rs.submit, and on_token = function(event).
---@param opts table
---@return table answer text, thinking, ids, tokens, stop, verdict, reason, tok_per_s ...
function rs.generate(opts) end

---Many prompts at once -> list of answers, in order.
---@param list table[] options of rs.submit
---@return table[]
function rs.generate_all(list) end

---Messages ({role=, content=}...) in the model's chat template -> segments, whether the answer begins inside a thought.
---@param messages table[]
---@param opts? table for the template: enable_thinking, add_generation_prompt ...
---@return table[] segments
---@return boolean thinking
function rs.render(messages, opts) end

---A conversation. Options: system, think.
---@param opts? table
---@return rs.session
function rs.session(opts) end

---Say something; options of rs.generate.
---@param text string
---@param opts? table
---@return table answer
function rs_session:chat(text, opts) end

---The answer to a question in a fresh conversation; options of rs.generate, and think (false).
---@param text string
---@param opts? table
---@return table answer
function rs.ask(text, opts) end

---One pass over tokens. Options: ids or prompt, logits ("last", "all", "none"), layers -> {argmax_each=, nll=, logits=, layers=, blob=, vocab=, n=}.
---@param opts table
---@return table
function rs.forward(opts) end

---Token ids of a text; special tokens are parsed only if asked for.
---@param text string
---@param special? boolean
---@return integer[]
function rs.encode(text, special) end

---The text of token ids.
---@param ids integer[]
---@param special? boolean print control tokens
---@return string
function rs.decode(ids, special) end

---Step times by mode, kind of op and layer.
---@return table
function rs.time.stats() end

---All-reduces by rank: count, p50_us, p99_us, waiting and moving apart, algbw_gbs, busbw_gbs.
---@return table
function rs.time.allreduce() end

---Ops of the program whose site matches the glob.
---@param glob? string
---@return table
function rs.op.list(glob) end

---What ran in the last step: impl, why, us by rank.
---@return table
function rs.op.ledger() end

---The verdict on the last answer, or on that of a stream.
---@param stream? integer
---@return table verdict, reason, health, first_bad
function rs.health(stream) end

---Which part of which tensor lies where. Options: path, ranks, split; the open model by default.
---@param opts? table
---@return table
function rs.audit(opts) end

---Add a command to the console: fn gets what was typed after "/name" as one string.
---@param name string letters, digits, - and _
---@param fn fun(args: string)
---@param help? string one line for /help
function rs.cmd.add(name, fn, help) end

---Take an added command away.
---@param name string
function rs.cmd.remove(name) end

---Bind a key of the console's panels: to an action or a command line ("zoom", "/stats", "=rs.mode()"), or to a function. Options: place (anywhere, panels,
---input, chat, log, ranks, allreduce, step, ops, patches, custom ...; /bind lists them), help (for the overlay).
---@param key string "F5", "C-t", "M-d", "x"
---@param action string|function
---@param opts? table
function rs.key.map(key, action, opts) end

---Take an added binding away; the key means what it meant before.
---@param key string
---@param place? string all of them without it
function rs.key.unmap(key, place) end

---Add a panel to the console; /layout shows it by its name. Options: title, fn (gives its text, lines apart by newlines), every_s (how often fn is asked; 1).
---fn runs as a task: it may ask the engine and wait.
---@param name string letters, digits and -
---@param opts? table
function rs.panel.add(name, opts) end

---Replace the text of a panel.
---@param name string
---@param text string
function rs.panel.text(name, text) end

---Take a panel away.
---@param name string
function rs.panel.remove(name) end

---Keep statistics of what ops write, in graph mode too. Options: what ("stats", "hash", "values", "copy"), n (values to keep), rank, out.
---@param site string glob over sites
---@param opts? table
---@return rs.tap
function rs.tap(site, opts) end

---Take taps away: one by its id, those of a glob, or all.
---@param which? integer|string
---@return integer removed
function rs.untap(which) end

---What the flight recorder holds of armed sites. Options: steps (of the last 64), rank. A record has step, rows, ranks: a list with rank, n, min, max,
---absmax, mean, rms, zeros, nan, inf, hash of each, and values where they are kept, and whole: the same of the whole tensor, rs.null where that is not known.
---@param site? string glob
---@param opts? table
---@return table sites each with site, kind, layout, records
function rs.read(site, opts) end

---The same for this tap.
---@param steps? integer
---@return table
function rs_tap:read(steps) end

---Take it away.
function rs_tap:untap() end

---Watch for trouble. cond: nan, inf, allzero, constant, absmax>X, drift>X, rankdiff. Options: site (glob), action ("log", "stop"), rank, out.
---@param cond string
---@param opts? table
---@return integer id
function rs.watch(cond, opts) end

---Take a watchpoint away, or all.
---@param id? integer
function rs.unwatch(id) end

---All watchpoints with their hits.
---@return table
function rs.watches() end

---Stop at ops. Options: when ("after", "before"), cond (such as "step > 3 && absmax > 100"), rank. Steps run eager while one is armed.
---@param site string glob
---@param opts? table
---@return integer id
---@return integer sites how many sites the pattern names
function rs.brk.add(site, opts) end

---Take one away, or all.
---@param id? integer
function rs.brk.del(id) end

---All breakpoints with their hits.
function rs.brk.list() end

---Wait until the engine is stopped -> what stopped it, or nil when it was not in time.
---@param timeout_s? number
---@return table|nil
function rs.brk.wait(timeout_s) end

---Run n more ops, then stop.
---@param n? integer
function rs.step(n) end

---Run to the first op of the next layer.
function rs.next() end

---Run to the next breakpoint.
function rs.continue() end

---Where the engine is stopped, or nil.
---@return table|nil
function rs.where() end

---Read what an op wrote (or read: what = "in") while the engine is stopped, or of the last step where it is still there. Options: what, index, rank,
---rows and cols ("0:4").
---@param site string
---@param opts? table
---@return rs.tensor
function rs.tensor.read(site, opts) end

---A tensor object out of a reply that describes one and its blob: rs.tensor.of(rs.call("probe.read", {site = ..., what = "copy"})).
---@param reply table
---@param blob string
---@return rs.tensor
function rs.tensor.of(reply, blob) end

---Overwrite a tensor while the engine is stopped inside a step: with one value everywhere.
---@param site string
---@param value number
---@param opts? table as rs.tensor.read
---@return integer written
function rs.tensor.write(site, value, opts) end

---All values, row by row.
---@return number[]
function rs_tensor:values() end

---One value; rows and columns count from 1.
---@param row integer
---@param col integer
---@return number
function rs_tensor:at(row, col) end

---How far another tensor of the same shape is away: rel_l2, max_abs and where that is.
---@param other rs.tensor
---@return table
function rs_tensor:diff(other) end

---Write it as a NumPy file.
---@param path string
function rs_tensor:save(path) end

---Run the same tokens under two configurations and compare every op; b may be {file = "x.npz"}. Options: prompt or segments or ids, site, tolerance, decode,
---cache.
---@param a table configuration: mode, ranks, numerics, patches, reset ...
---@param b table
---@param opts table
---@return table first, ops, out_of_tolerance, compared, logits
function rs.diff(a, b, opts) end

---Write what every op writes to an .npz file. Options: prompt or segments or ids, site, config.
---@param path string
---@param opts table
---@return table path, arrays, tokens
function rs.dump(path, opts) end

---Every op against the reference on its own inputs. Options: prompt or segments or ids, decode, site, tolerance, config.
---@param opts table
---@return table compared, out_of_tolerance, first, guilty
function rs.replay(opts) end

---The hyper-parameters in use against what models of this shape are known to use.
---@return table model, facts, wrong, defaults
function rs.hparams_check() end

---The cache of a conversation against computing it again.
---@param session integer
---@return table
function rs.cache_check(session) end

---Decode speed, modes in turns so that none has the machine to itself. Options: tokens, repeats, modes.
---@param opts? table
---@return table by mode: tok_per_s (median), min, max
function rs.bench.decode(opts) end

---A configuration as one line: "mla=off mode=eager"; "default" when empty.
---@param config table
---@return string
function rs.exp.name(config) end

---Apply a configuration over what is set. Patches first in eager mode, so that an implementation that graphs refuse meets them with the mode it
---is meant for.
---@param config table
function rs.exp.apply(config) end

---Run fn(...) with the engine's present configuration put back afterwards, whatever happens, also when the operator interrupts it.
---@param fn function
---@return any ... what fn gives
function rs.exp.restoring(fn, ...) end

---Every combination of levels on every prompt, in turns. Options: factors {slot = {levels; the first is the baseline}}, prompts, repeats (1), max_tokens (40),
---reference (answers that are known to be right), progress = function(done, total, seconds_left), state (a table that is filled in as arms are done, and that
---an experiment which was stopped goes on from; it can be kept as JSON).
---@param o table
---@return table result arms (config, right, agreement, tok_per_s, spread, verdicts), factors, effects, sentences, seconds
function rs.exp.run(o) end

---Main effects and two-way interactions on the verdict (share of settings with right answers, 0..1), agreement (0..1) and speed (as a fraction): lists main
---{factor=, level=, right=, agreement=, speed=, noise=} and pairs {a=, level_a=, b=, level_b=, right=, agreement=, speed=, noise=}. An interaction is what
---both together do beyond the sum of what each does alone. noise: what the spread between repeats leaves uncertain of a speed; nil with one repeat.
---@param r table result of exp.run
---@return table
function rs.exp.effects(r) end

---What the table says, in words.
---@param r table result of exp.run
---@return string[]
function rs.exp.sentences(r) end

---The table as text.
---@param r table result of exp.run
---@return string
function rs.exp.table(r) end

---Effects as text: main effects, then the interactions that are not nothing.
---@param r table result of exp.run
---@return string
function rs.exp.effects_text(r) end

---The smallest part of `patches` ({slot=impl}) that is still bad (delta debugging; interactions are found, because subsets are tried together).
---bad(config) -> true when the configuration shows the fault. log(config, is_bad, seconds_left) is called for every probe; seconds_left is at most, should
---nothing more be found at once. -> config, number of probes.
---@param patches table
---@param bad fun(config: table): boolean
---@param log? fun(config: table, is_bad: boolean, seconds_left: number)
---@param known? table what probes have shown, by name of the configuration; filled in, so that a bisection which was stopped goes on from it
---@return table|nil config nil: all together are not bad
---@return integer probes
function rs.exp.bisect(patches, bad, log, known) end

---Open a notebook file, the user's own by default.
---@param path? string
---@return rs.notebook.book
function rs.notebook.open(path) end

---Close it.
function rs_notebook_book:close() end

---Record a claim: {statement=, steps={{config={mla="off"}, expect="right"}, ...}, question=, reference=}. The steps are run first.
---@param o table
---@return integer id
---@return string status
---@return string note what came out otherwise
function rs_notebook_book:claim(o) end

---Run a claim's steps again under the present configuration; all claims without an id -> list of {id=, statement=, before=, status=, note=}.
---@param id? integer
---@return table[]
function rs_notebook_book:retest(id) end

---All claims; refuted and untestable ones first.
---@return table[]
function rs_notebook_book:claims() end

---Record a hypothesis, open at first.
---@param statement string
---@return integer id
function rs_notebook_book:hypothesis(statement) end

---Settle a hypothesis: open, supported, refuted or superseded. Tasks tied to it change with it, so that no list goes stale.
---@param id integer
---@param status string
function rs_notebook_book:resolve(id, status) end

---All hypotheses.
---@return table[]
function rs_notebook_book:hypotheses() end

---Record a task. Tied to a hypothesis (its id) or an experiment (its name) it changes state with that.
---@param text string
---@param tie? integer|string
---@return integer id
function rs_notebook_book:task(text, tie) end

---Set a task's state: open, in progress, done or superseded.
---@param id integer
---@param status string
function rs_notebook_book:task_status(id, status) end

---All tasks.
---@return table[]
function rs_notebook_book:tasks() end

---Keep the result of exp.run.
---@param name string
---@param r table
---@return integer id
function rs_notebook_book:experiment(name, r) end

---All experiments.
---@return table[]
function rs_notebook_book:experiments() end

---Keep a table of what was stopped, to go on from; nil forgets it.
---@param what string
---@param state? table
function rs_notebook_book:keep(what, state) end

---What was kept, or nil.
---@param what string
---@return table|nil
function rs_notebook_book:kept(what) end

---Everything as Markdown.
---@return string
function rs_notebook_book:markdown() end

---Find the op that makes the output bad, under the configuration that is set. Options: prompts (questions; some of the shipped model's by default), all (go on
---after the first finding), progress = function(name, seconds, text, found).
---@param opts? table
---@return table verdict ("guilty", "healthy", "unexplained"), op, site, slot, ranks, reason, findings, steps, seconds
function triage.run(opts) end

---A progress function for triage.run that prints each piece of evidence as it comes.
---@param name string
---@param seconds number
---@param text string
---@param found boolean
function triage.tell(name, seconds, text, found) end

---Print the result of triage.run; told: its evidence was printed by triage.tell.
---@param r table
---@param told? boolean
function triage.report(r, told) end

---The position of a row in its sequence.
---@param row integer
---@return integer
function rs_patch_call:pos(row) end

---embed: which row of w[1] a row's token is; nil: another rank has it, and y gets zeros here.
---@param row integer
---@return integer|nil
function rs_patch_call:token(row) end

---moe_gate_up, moe_down: the pairs of one of this rank's experts. They are rows of what moe_gate_up writes and moe_down reads. None: last is first - 1.
---@param expert integer
---@return integer first
---@return integer last
function rs_patch_call:pairs(expert) end

---moe_gate_up, moe_down: the row of the batch that a pair is of, and what the expert counts for it.
---@param pair integer
---@return integer row
---@return number weight
function rs_patch_call:pair(pair) end

---Cosines and sines of a row's position, rope_dim / 2 of each.
---@param row integer
---@return number[] cos
---@return number[] sin
function rs_patch_call:angles(row) end

---A row of the cache, [latent: kv_lora | key: rope_dim] (in ops of the indexer its key, head_dim values), of the sequence that row belongs to.
---@param row integer
---@param pos integer from 0 to the row's own
---@return number[]
function rs_patch_call:cached(row, pos) end

---mla: the positions that the row looks at, ascending; nil: all up to its own.
---@param row integer
---@return integer[]|nil
function rs_patch_call:selected(row) end

---index_topk: what a row looks at, up to top_k positions, ascending; nil: all, as rows of up to top_k positions do.
---@param row integer
---@param positions integer[]|nil
function rs_patch_call:select(row, positions) end

---kv_store, index_store: put a row into the cache at its position.
---@param row integer
---@param values number[]
function rs_patch_call:store(row, values) end

---router: the experts of a row, n_used of them, and what they count.
---@param row integer
---@param experts integer[]
---@param weights number[]
function rs_patch_call:choose(row, experts, weights) end

---A copy of a row. What index_scores writes and index_topk reads has a value for each position from 0 to the row's own, and no more.
---@param i integer
---@return number[]
function rs_patch_tensor:row(i) end

---One value.
---@param i integer
---@param j integer
---@return number
function rs_patch_tensor:get(i, j) end

---Write a row of call.y.
---@param i integer
---@param values number[]
function rs_patch_tensor:set(i, values) end

---A row as floats.
---@param i integer
---@param mat? integer
---@return number[]
function rs_patch_weight:row(i, mat) end

---The product of a row with a vector of k numbers, summed in double.
---@param i integer
---@param x number[]
---@param mat? integer
---@return number
function rs_patch_weight:dot(i, x, mat) end
