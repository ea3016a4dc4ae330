-- DeepSeek-V2, V2-Lite and DeepSeek LLM chat models: roles are plain words, only the ends of the text and of answers are tokens.
-- The words stand in the same segments as what people type, so that "User: Hi" is tokenised as one text, as in training.

local lib = require "templates.lib"
local deepseek = require "templates.deepseek"

return {
    name = "deepseek_v2",
    thinking_default = false,
    stop = deepseek.stop,

    detect = function(source)
        return lib.has(source, "'User: '") and lib.has(source, "'Assistant:'") and 50
    end,

    render = function(messages, opts)
        lib.no_tools(opts, "deepseek_v2")
        local out = lib.new():mark(deepseek.BOS)
        for _, m in ipairs(messages) do
            if m.role == "system" then
                out:text(lib.content(m) .. "\n\n")
            elseif m.role == "user" then
                out:text("User: " .. lib.content(m) .. "\n\n")
            elseif m.role == "assistant" then
                out:text("Assistant: " .. deepseek.answer(m)):mark(deepseek.EOS)
            elseif m.role == "tool" then
                error("the chat template deepseek_v2 has no tool messages", 0)
            end
        end
        if opts.add_generation_prompt ~= false then out:text("Assistant:") end
        return out:segments()
    end,
}
