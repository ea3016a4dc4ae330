-- pretty.lua: values as text for people: sorted keys, bounded depth and width, cycles marked. Metamethods __tostring are respected.
local pretty = {}

local function key_text(k)
  if type(k) == "string" and k:match("^[%a_][%w_]*$") then return k end
  return "[" .. pretty.text(k, 1) .. "]"
end

local function sorted_keys(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

-- Many short values, such as a histogram, in lines instead of one a line.
local function lines_of(parts, indent)
  local out, line = {}, nil
  for i, p in ipairs(parts) do
    local item = i < #parts and p .. "," or p
    if line and #indent + 2 + #line + 1 + #item > 100 then
      out[#out + 1] = line
      line = item
    else
      line = line and line .. " " .. item or item
    end
  end
  out[#out + 1] = line
  return "{\n" .. indent .. "  " .. table.concat(out, "\n" .. indent .. "  ") .. "\n" .. indent .. "}"
end

local function render(v, depth, indent, seen)
  if type(v) == "string" then return (string.format("%q", v):gsub("\\\n", "\\n")) end
  if type(v) ~= "table" then return tostring(v) end
  local mt = getmetatable(v)
  if mt and mt.__tostring then return tostring(v) end
  if seen[v] then return "<cycle>" end
  if next(v) == nil then return "{}" end
  if depth == 0 then return "{...}" end
  seen[v] = true
  local parts, n, short = {}, 0, true
  for _, k in ipairs(sorted_keys(v)) do
    n = n + 1
    if n > 200 then
      parts[#parts + 1] = "..."
      break
    end
    local text = render(v[k], depth - 1, indent .. "  ", seen)
    local item = math.type(k) == "integer" and k == n
    short = short and item and type(v[k]) ~= "table"
    parts[#parts + 1] = item and text or key_text(k) .. " = " .. text
  end
  seen[v] = nil
  local flat = "{" .. table.concat(parts, ", ") .. "}"
  if #flat + #indent <= 100 and not flat:find("\n", 1, true) then return flat end
  if short then return lines_of(parts, indent) end
  return "{\n" .. indent .. "  " .. table.concat(parts, ",\n" .. indent .. "  ") .. "\n" .. indent .. "}"
end

--- A value as text; depth levels of tables (default 4).
function pretty.text(v, depth) return render(v, depth or 4, "", {}) end

return pretty
