-- The down projections of the experts that were chosen, added up by row, in Lua.
--
--     /patch load scripts/patches/moe_down.lua
--     /patch set user=moe_down-lua@blk.3.*
return {
  name = "moe_down-lua", kind = "moe_down", help = "sums in double, experts ascending",
  run = function(call)
    local down, width, sum = call.w[1], call.y.width, {}
    for i = 1, call.rows do
      sum[i] = {}
      for j = 1, width do sum[i][j] = 0 end
    end
    for e = 1, call.experts do
      local first, last = call:pairs(e)
      for p = first, last do
        local row, weight = call:pair(p)
        local x, y = call.x:row(p), sum[row]
        for j = 1, width do y[j] = y[j] + weight * down:dot(j, x, e) end
      end
    end
    for i = 1, call.rows do call.y:set(i, sum[i]) end
  end,
}
