-- The router in Lua: the place to try another rule of choice, or to send every token to one expert and see what it knows.
--
--     /patch load scripts/patches/router.lua
--     /patch set user=router-lua@blk.2.*

-- The gating function, in place.
local function gate(call, x)
  local top, sum = math.max(table.unpack(x)), 0
  for e = 1, #x do
    x[e] = call.sigmoid and 1 / (1 + math.exp(-x[e])) or math.exp(x[e] - top)
    sum = sum + x[e]
  end
  if not call.sigmoid then
    for e = 1, #x do x[e] = x[e] / sum end
  end
end

-- Experts of all groups but the best leave the race. A group is worth its two best together.
local function limit_groups(call, s)
  local per, worth, order = #s // call.n_groups, {}, {}
  for g = 1, call.n_groups do
    local first, second = -math.huge, -math.huge
    for e = (g - 1) * per + 1, g * per do
      if s[e] > first then first, second = s[e], first
      elseif s[e] > second then second = s[e] end
    end
    worth[g], order[g] = per > 1 and first + second or first, g
  end
  table.sort(order, function(a, b)
    if worth[a] ~= worth[b] then return worth[a] > worth[b] end
    return a < b
  end)
  for k = call.n_groups_used + 1, call.n_groups do
    for e = (order[k] - 1) * per + 1, order[k] * per do s[e] = -math.huge end
  end
end

return {
  name = "router-lua", kind = "router", help = "scores in double, experts one after the other",
  run = function(call)
    local bias = call.w[2] and call.w[2]:row(1)
    for i = 1, call.rows do
      local x, score, s, chosen, weights, sum = call.x:row(i), {}, {}, {}, {}, 0
      for e = 1, call.n_experts do score[e] = call.w[1]:dot(e, x) end
      gate(call, score)
      for e = 1, #score do s[e] = score[e] + (bias and bias[e] or 0) end
      if call.n_groups_used < call.n_groups then limit_groups(call, s) end
      for k = 1, call.n_used do
        local at = 1
        for e = 2, #s do
          if s[e] > s[at] then at = e end
        end
        chosen[k], weights[k], sum, s[at] = at, score[at], sum + score[at], -math.huge
      end
      for k = 1, call.n_used do weights[k] = weights[k] * call.scale / (call.normalise and sum or 1) end
      call.y:set(i, score)
      call:choose(i, chosen, weights)
    end
  end,
}
