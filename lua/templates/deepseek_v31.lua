-- DeepSeek-V3.1: thinks on request. An answer without a thought begins with "</think>" in the template that DeepSeek published and with
-- "<think></think>" in a corrected one that many files carry; the file's own template decides.

local lib = require "templates.lib"
local deepseek = require "templates.deepseek"

local EMPTY = "<think></think>"

return {
    name = "deepseek_v31",
    thinking_default = false,
    think_open = "<think>",
    think_close = "</think>",
    stop = deepseek.stop,

    detect = function(source)
        return lib.has(source, deepseek.ASSISTANT) and lib.has(source, "thinking") and lib.has(source, "'<think>'") and 70
    end,

    render = function(messages, opts)
        lib.no_tools(opts, "deepseek_v31")
        local empty = EMPTY
        if opts.source and not lib.has(opts.source, EMPTY) then empty = "</think>" end
        local out = lib.new()
        deepseek.head(out, messages)
        local asked = false -- the last message is a question
        local results = false -- the last message is a tool's result: the answer goes on without a mark
        for _, m in ipairs(messages) do
            if m.role == "user" then
                out:mark(deepseek.USER):text(lib.content(m))
                asked, results = true, false
            elseif m.role == "assistant" then
                local calls = lib.calls(m)
                if asked then out:mark(deepseek.ASSISTANT .. empty) end
                out:text(deepseek.answer(m))
                if #calls > 0 then deepseek.calls(out, calls, false) else out:mark(deepseek.EOS) end
                asked, results = false, false
            elseif m.role == "tool" then
                out:mark("<｜tool▁output▁begin｜>"):text(lib.content(m)):mark("<｜tool▁output▁end｜>")
                asked, results = false, true
            end
        end
        if opts.add_generation_prompt ~= false and asked and not results then
            out:mark(deepseek.ASSISTANT .. (opts.enable_thinking and "<think>" or empty))
        end
        return out:segments()
    end,
}
