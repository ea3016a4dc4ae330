-- DeepSeek-R1: every answer begins with a thought, and thoughts of earlier answers are dropped.

local lib = require "templates.lib"
local deepseek = require "templates.deepseek"

return {
    name = "deepseek_r1",
    thinking_default = true,
    think_open = "<think>",
    think_close = "</think>",
    stop = deepseek.stop,

    detect = function(source) -- the line break is an escape in the template's source, or is one
        local prompt = deepseek.ASSISTANT .. "<think>"
        return (lib.has(source, prompt .. "\\n") or lib.has(source, prompt .. "\n")) and 80
    end,

    render = function(messages, opts)
        lib.no_tools(opts, "deepseek_r1")
        local out = lib.new()
        -- the model was not trained to skip its thought; an empty one makes it answer at once
        deepseek.classic(out, messages, opts, opts.enable_thinking == false and "<think>\n\n</think>\n\n" or "<think>\n")
        return out:segments()
    end,
}
