-- DeepSeek-V3 and V3-0324: no thoughts.

local lib = require "templates.lib"
local deepseek = require "templates.deepseek"

return {
    name = "deepseek_v3",
    thinking_default = false,
    stop = deepseek.stop,

    detect = function(source)
        return lib.has(source, deepseek.ASSISTANT) and 50
    end,

    render = function(messages, opts)
        lib.no_tools(opts, "deepseek_v3")
        local out = lib.new()
        deepseek.classic(out, messages, opts, "")
        return out:segments()
    end,
}
