-- GLM-5, GLM-5.1, GLM-4.7-Flash: an empty thought is "</think>" alone.

local lib = require "templates.lib"
local glm = require "templates.glm"

return {
    name = "glm5",
    thinking_default = true,
    think_open = "<think>",
    think_close = "</think>",
    stop = glm.stop,

    detect = function(source)
        return lib.has(source, "[gMASK]<sop>") and lib.has(source, "</think>") and not lib.has(source, "<|user|>\n") and 50
    end,

    render = function(messages, opts)
        local out = lib.new():mark("[gMASK]<sop>")
        local tools = lib.tools(opts)
        if #tools > 0 then
            local lines = {}
            for i, tool in ipairs(tools) do lines[i] = lib.json.encode(tool) end
            glm.tools(out, lines)
        end
        -- 4.7 strips thoughts, 5.1 does not
        glm.messages(out, messages, opts, { empty = "</think>", strip = lib.has(opts.source, "reasoning_content.strip()") })
        return out:segments()
    end,
}
