-- The norm in Lua: the text of a formula, for trying another one.
--
--     /patch load scripts/patches/rmsnorm.lua
--     /patch set user=rmsnorm-lua@blk.3.*
return {
  name = "rmsnorm-lua", kind = "rmsnorm", help = "x / sqrt(mean(x^2) + eps) * w, in double",
  run = function(call)
    local w = call.w[1]:row(1)
    for i = 1, call.rows do
      local x, sum = call.x:row(i), 0
      for j = 1, #x do sum = sum + x[j] * x[j] end
      local f = 1 / math.sqrt(sum / #x + call.eps)
      for j = 1, #x do x[j] = x[j] * f * w[j] end
      call.y:set(i, x)
    end
  end,
}
