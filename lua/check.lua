-- check.lua: arguments of the library's functions: what is wrong is said with the function's name, at the caller's line.
local check = {}

--- Raise an error unless every key of opts is in `known` (a list); returns opts or {}.
function check.options(where, opts, known)
  if opts == nil then return {} end
  if type(opts) ~= "table" then error(where .. ": a table of options expected, got " .. type(opts), 3) end
  local ok = {}
  for _, k in ipairs(known) do ok[k] = true end
  for k in pairs(opts) do
    if not ok[k] then error(("%s: no option '%s'; there are: %s"):format(where, tostring(k), table.concat(known, ", ")), 3) end
  end
  return opts
end

--- Raise an error unless v is of that type; returns v.
function check.want(where, name, v, kind)
  if type(v) ~= kind then error(("%s: %s: %s expected, got %s"):format(where, name, kind, type(v)), 3) end
  return v
end

--- A shallow copy with what `more` adds.
function check.copy(t, more)
  local c = {}
  for k, v in pairs(t or {}) do c[k] = v end
  for k, v in pairs(more or {}) do c[k] = v end
  return c
end

return check
