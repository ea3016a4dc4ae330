-- The embedding in Lua: the place to put a vector of one's own in the place of a token's.
--
--     /patch load scripts/patches/embed.lua
--     /patch set user=embed-lua
return {
  name = "embed-lua", kind = "embed", help = "the rows of the table, dequantised",
  run = function(call)
    local zeros = {}
    for j = 1, call.y.width do zeros[j] = 0 end
    for i = 1, call.rows do
      local at = call:token(i)
      call.y:set(i, at and call.w[1]:row(at) or zeros)
    end
  end,
}
