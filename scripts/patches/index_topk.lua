-- The indexer's choice in Lua: the place to try another rule, such as to keep the newest positions whatever their scores.
--
--     /patch load scripts/patches/index_topk.lua
--     /patch set user=index_topk-lua@blk.3.*
return {
  name = "index_topk-lua", kind = "index_topk", help = "the positions of the largest scores, of equal ones the first",
  run = function(call)
    for i = 1, call.rows do
      local n, score, order = call:pos(i) + 1, call.x:row(i), {}
      if n <= call.top_k then
        call:select(i)
      else
        for p = 1, n do order[p] = p - 1 end
        table.sort(order, function(a, b)
          if score[a + 1] ~= score[b + 1] then return score[a + 1] > score[b + 1] end
          return a < b
        end)
        for k = n, call.top_k + 1, -1 do order[k] = nil end
        table.sort(order)
        call:select(i, order)
      end
    end
  end,
}
