-- GLM-5.2: a line with the reasoning effort, an empty thought is "<think></think>", tools without their outer object.

local lib = require "templates.lib"
local glm = require "templates.glm"

local HIDDEN = { defer_loading = true, strict = true }

-- The inner object of a tool without the keys that are for the client; nil when the tool is not to be shown.
local function signature(tool)
    local f = tool["function"] or tool
    if f.defer_loading == true then return nil end
    local parts = {}
    for _, k in ipairs(lib.json.keys(f)) do
        if not HIDDEN[k] then parts[#parts + 1] = lib.json.encode(tostring(k)) .. ": " .. lib.json.encode(f[k]) end
    end
    return "{" .. table.concat(parts, ", ") .. "}"
end

return {
    name = "glm52",
    thinking_default = true,
    think_open = "<think>",
    think_close = "</think>",
    stop = glm.stop,

    detect = function(source)
        return lib.has(source, "[gMASK]<sop>") and lib.has(source, "Reasoning Effort: ") and 90
    end,

    render = function(messages, opts)
        local out = lib.new():mark("[gMASK]<sop>")
        if opts.enable_thinking ~= false then
            out:mark("<|system|>Reasoning Effort: " .. (opts.reasoning_effort == "high" and "High" or "Max"))
        end
        local tools = lib.tools(opts)
        if #tools > 0 then
            local lines = {}
            for _, tool in ipairs(tools) do lines[#lines + 1] = signature(tool) end
            glm.tools(out, lines)
        end
        glm.messages(out, messages, opts, { empty = "<think></think>", strip = false })
        return out:segments()
    end,
}
