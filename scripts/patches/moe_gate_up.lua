-- The gate and up projections of the experts that were chosen, in Lua: the place to scale or to silence an expert.
--
--     /patch load scripts/patches/moe_gate_up.lua
--     /patch set user=moe_gate_up-lua@blk.3.*
return {
  name = "moe_gate_up-lua", kind = "moe_gate_up", help = "sums in double, expert after expert",
  run = function(call)
    local gate, up = call.w[1], call.w[2]
    for e = 1, call.experts do
      local first, last = call:pairs(e)
      for p = first, last do
        local x, y = call.x:row((call:pair(p))), {}
        for j = 1, gate.rows do
          y[j], y[gate.rows + j] = gate:dot(j, x, e), up:dot(j, x, e)
        end
        call.y:set(p, y)
      end
    end
  end,
}
