-- args.lua: the command line of a script.
local args = {}

-- Read the global `arg`. spec: a table from option, "--name", to what it takes: "number" (whole), "real", "text", "flag" (nothing), a list of allowed words, or
-- "patch" (SLOT=IMPL, many times: a table slot = impl). -> values by name without the dashes, the list of what is no option. Errors have no position: they
-- are about what was typed.
function args.read(spec)
  local opt, rest, i = {}, {}, 1
  while arg[i] do
    local a = arg[i]
    local kind, name = spec[a], a:sub(3)
    if a:sub(1, 2) ~= "--" then rest[#rest + 1] = a
    elseif kind == nil then error("unknown option " .. a, 0)
    elseif kind == "flag" then opt[name] = true
    else
      i = i + 1
      local value = arg[i] or error(a .. " needs a value", 0)
      if kind == "number" then opt[name] = math.tointeger(tonumber(value)) or error(a .. ": a number expected", 0)
      elseif kind == "real" then opt[name] = tonumber(value) or error(a .. ": a number expected", 0)
      elseif kind == "text" then opt[name] = value
      elseif kind == "patch" then
        local slot, impl = value:match("^([^=]+)=(.+)$")
        if not slot then error(a .. ": SLOT=IMPL expected", 0) end
        opt[name] = opt[name] or {}
        opt[name][slot] = impl
      else
        for _, w in ipairs(kind) do opt[name] = w == value and w or opt[name] end
        if opt[name] ~= value then error(("%s: %s or %s expected"):format(a, table.concat(kind, ", ", 1, #kind - 1), kind[#kind]), 0) end
      end
    end
    i = i + 1
  end
  return opt, rest
end

return args
