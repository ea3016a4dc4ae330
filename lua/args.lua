-- args.lua: the command line of a script.
local args = {}

-- "--mode eager|graph, --ranks NUMBER", for messages.
local function known(spec)
  local out = {}
  for name, kind in pairs(spec) do
    out[#out + 1] = name .. (kind == "flag" and "" or type(kind) == "table" and " " .. table.concat(kind, "|") or kind == "patch" and " SLOT=IMPL" or " " .. kind:upper())
  end
  table.sort(out)
  return table.concat(out, ", ")
end

-- Read the global `arg`. spec: a table from option, "--name", to what it takes: "number" (whole), "real", "text", "flag" (nothing), a list of allowed words, or
-- "patch" (SLOT=IMPL, many times: a table slot = impl). -> values by name without the dashes, the list of what is no option. Errors begin with "usage: ": they
-- are about what was typed.
function args.read(spec)
  local opt, rest, i = {}, {}, 1
  local function wrong(text) error("usage: " .. text, 0) end
  while arg[i] do
    local a = arg[i]
    local kind, name = spec[a], a:sub(3)
    if a:sub(1, 2) ~= "--" then rest[#rest + 1] = a
    elseif kind == nil then wrong(a == "--help" and "options are " .. known(spec) or ("there is no option %s; there are %s"):format(a, known(spec)))
    elseif kind == "flag" then opt[name] = true
    else
      i = i + 1
      local value = arg[i] or wrong(a .. " needs a value")
      if kind == "number" then opt[name] = math.tointeger(tonumber(value)) or wrong(a .. ": a number expected")
      elseif kind == "real" then opt[name] = tonumber(value) or wrong(a .. ": a number expected")
      elseif kind == "text" then opt[name] = value
      elseif kind == "patch" then
        local slot, impl = value:match("^([^=]+)=(.+)$")
        if not slot then wrong(a .. ": SLOT=IMPL expected") end
        opt[name] = opt[name] or {}
        opt[name][slot] = impl
      else
        for _, w in ipairs(kind) do opt[name] = w == value and w or opt[name] end
        if opt[name] ~= value then wrong(("%s: %s or %s expected"):format(a, table.concat(kind, ", ", 1, #kind - 1), kind[#kind])) end
      end
    end
    i = i + 1
  end
  return opt, rest
end

return args
