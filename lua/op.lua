--- What a patch in Lua sees (patch.load, scripts/patches/*.lua). This file is its description; the functions themselves are in lua/scr_op.c.
--- The file returns a table: name, kind (an op kind of engine/patch_api.h, which says what each has to compute), help, and run, a function that is called
--- with a call once per rank, op and step. Only base functions, math, table and string.format are there. What run writes counts when it has ended;
--- if it raises an error or runs too long, the patch is taken out and the step is computed without it. Each worker has a Lua state of its own: keep nothing
--- from call to call. Rows, columns and experts are counted from 1, positions and layers from 0.
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
local Call = {}

--- The position of a row in its sequence.
---@param row integer
---@return integer
function Call:pos(row) end

--- embed: which row of w[1] a row's token is; nil: another rank has it, and y gets zeros here.
---@param row integer
---@return integer|nil
function Call:token(row) end

--- moe_gate_up, moe_down: the pairs of one of this rank's experts. They are rows of what moe_gate_up writes and moe_down reads. None: last is first - 1.
---@param expert integer
---@return integer first
---@return integer last
function Call:pairs(expert) end

--- moe_gate_up, moe_down: the row of the batch that a pair is of, and what the expert counts for it.
---@param pair integer
---@return integer row
---@return number weight
function Call:pair(pair) end

--- Cosines and sines of a row's position, rope_dim / 2 of each.
---@param row integer
---@return number[] cos
---@return number[] sin
function Call:angles(row) end

--- A row of the cache, [latent: kv_lora | key: rope_dim] (in ops of the indexer its key, head_dim values), of the sequence that row belongs to.
---@param row integer
---@param pos integer from 0 to the row's own
---@return number[]
function Call:cached(row, pos) end

--- mla: the positions that the row looks at, ascending; nil: all up to its own.
---@param row integer
---@return integer[]|nil
function Call:selected(row) end

--- index_topk: what a row looks at, up to top_k positions, ascending; nil: all, as rows of up to top_k positions do.
---@param row integer
---@param positions integer[]|nil
function Call:select(row, positions) end

--- kv_store, index_store: put a row into the cache at its position.
---@param row integer
---@param values number[]
function Call:store(row, values) end

--- router: the experts of a row, n_used of them, and what they count.
---@param row integer
---@param experts integer[]
---@param weights number[]
function Call:choose(row, experts, weights) end

---@class rs.patch.tensor
---@field rows integer
---@field width integer
local PatchTensor = {}

--- A copy of a row. What index_scores writes and index_topk reads has a value for each position from 0 to the row's own, and no more.
---@param i integer
---@return number[]
function PatchTensor:row(i) end

--- One value.
---@param i integer
---@param j integer
---@return number
function PatchTensor:get(i, j) end

--- Write a row of call.y.
---@param i integer
---@param values number[]
function PatchTensor:set(i, values) end

---@class rs.patch.weight
---@field rows integer
---@field k integer values of a row
---@field mats integer matrices: mla, one per head
local Weight = {}

--- A row as floats.
---@param i integer
---@param mat? integer
---@return number[]
function Weight:row(i, mat) end

--- The product of a row with a vector of k numbers, summed in double.
---@param i integer
---@param x number[]
---@param mat? integer
---@return number
function Weight:dot(i, x, mat) end
