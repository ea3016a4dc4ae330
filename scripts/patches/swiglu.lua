-- The activation of the experts: x holds [gate | up], y = silu(gate) * up. Rows are (row, expert) pairs.
--
--     /patch load scripts/patches/swiglu.lua
--     /patch set user=swiglu-lua
return {
  name = "swiglu-lua", kind = "moe_silu_mul", help = "gate / (1 + exp(-gate)) * up, in double",
  run = function(call)
    for i = 1, call.rows do
      local x, y, n = call.x:row(i), {}, call.y.width
      for j = 1, n do y[j] = x[j] / (1 + math.exp(-x[j])) * x[n + j] end
      call.y:set(i, y)
    end
  end,
}
