-- Kimi-K2 (Instruct and Thinking). Thinking files are recognised by "<think>" in their own template: answers then carry a thought, which is
-- dropped up to the last answer that was not a tool call.

local lib = require "templates.lib"

local DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
local OLD_DEFAULT_SYSTEM = "You are a helpful assistant"

local MARK = { user = "<|im_user|>", assistant = "<|im_assistant|>" } -- every other role: <|im_system|>

local function open(out, m)
    return out:mark(MARK[m.role] or "<|im_system|>"):text(m.name or m.role):mark("<|im_middle|>")
end

local function calls(out, list, ids)
    out:mark("<|tool_calls_section_begin|>")
    for _, c in ipairs(list) do
        local id = c.id
        if not id then
            ids.made = ids.made + 1
            id = ("functions.%s:%d"):format(c.name, ids.made)
        end
        ids[#ids + 1] = id
        out:mark("<|tool_call_begin|>"):text(id):mark("<|tool_call_argument_begin|>"):text(c.raw):mark("<|tool_call_end|>")
    end
    out:mark("<|tool_calls_section_end|>")
end

local function last_plain_answer(messages)
    for i = #messages, 1, -1 do
        if messages[i].role == "assistant" and #lib.calls(messages[i]) == 0 then return i end
    end
    return 0
end

return {
    name = "kimi_k2",
    thinking_default = false,
    think_open = "<think>",
    think_close = "</think>",
    stop = { "<|im_end|>", "[EOS]" },

    detect = function(source)
        return lib.has(source, "<|im_middle|>") and 80
    end,

    render = function(messages, opts)
        local out, ids = lib.new(), { made = 0, taken = 0 }
        local thinks, history = lib.has(opts.source, "<think>"), last_plain_answer(messages)
        local tools = lib.tools(opts)
        if #tools > 0 then
            out:mark("<|im_system|>"):text("tool_declare"):mark("<|im_middle|>")
            out:text(lib.json.encode(lib.json.array(tools))):mark("<|im_end|>")
        end
        if #messages == 0 or messages[1].role ~= "system" then
            local old = lib.has(opts.source, OLD_DEFAULT_SYSTEM) and not lib.has(opts.source, DEFAULT_SYSTEM)
            open(out, { role = "system" }):text(old and OLD_DEFAULT_SYSTEM or DEFAULT_SYSTEM):mark("<|im_end|>")
            -- Instruct's template lets a line break through here, and only here
            if opts.source and opts.source:find("Moonshot AI%.<|im_end|>\n%s*{%% endif") then out:mark("\n") end
        end
        for i, m in ipairs(messages) do
            open(out, m)
            if m.role == "assistant" then
                local reasoning, content = lib.thought(m)
                if thinks then out:mark("<think>"):text(i > history and reasoning or ""):mark("</think>") end
                out:text(content)
                local list = lib.calls(m)
                if #list > 0 then calls(out, list, ids) end
            elseif m.role == "tool" then
                ids.taken = ids.taken + 1
                local id = m.tool_call_id or ids[ids.taken] or ("functions.%s:%d"):format(m.name or "unknown", ids.taken)
                out:text("## Return of " .. id .. "\n" .. lib.content(m))
            else
                out:text(lib.content(m))
            end
            out:mark("<|im_end|>")
        end
        if opts.add_generation_prompt ~= false then open(out, { role = "assistant" }) end
        return out:segments()
    end,
}
