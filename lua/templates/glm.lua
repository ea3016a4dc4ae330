-- What the GLM-5 family's templates have in common: everything but the marks of an empty thought and the head of the prompt.

local lib = require "templates.lib"
local json = lib.json

local M = {}

local TOOLS_HEAD = "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    .. "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
local TOOLS_TAIL = "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    .. "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    .. "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"

--- The block that describes tools; lines holds one JSON text per tool.
function M.tools(out, lines)
    out:mark(TOOLS_HEAD)
    for _, line in ipairs(lines) do out:text(line .. "\n") end
    out:mark(TOOLS_TAIL)
end

local function call(out, c)
    out:mark("<tool_call>"):text(c.name)
    for _, k in ipairs(json.keys(c.arguments)) do
        local v = c.arguments[k]
        out:mark("<arg_key>"):text(k):mark("</arg_key><arg_value>")
        out:text(type(v) == "string" and v or json.encode(v)):mark("</arg_value>")
    end
    out:mark("</tool_call>")
end

-- style: empty = mark of an empty thought; strip = whether thoughts are stripped of white space
local function assistant(out, m, keep, style)
    local reasoning, content = lib.thought(m)
    out:mark("<|assistant|>")
    if keep and reasoning and reasoning ~= "" then
        out:mark("<think>"):text(style.strip and lib.strip(reasoning) or reasoning):mark("</think>")
    else
        out:mark(style.empty)
    end
    out:text(lib.strip(content))
    for _, c in ipairs(lib.calls(m)) do call(out, c) end
end

--- All messages and the generation prompt. Thoughts of answers before the last user message are dropped unless clear_thinking is false.
function M.messages(out, messages, opts, style)
    local last_user = lib.last_of(messages, "user")
    for i, m in ipairs(messages) do
        if m.role == "user" then
            out:mark("<|user|>"):text(lib.content(m))
        elseif m.role == "system" then
            out:mark("<|system|>"):text(lib.content(m))
        elseif m.role == "assistant" then
            assistant(out, m, opts.clear_thinking == false or i > last_user, style)
        elseif m.role == "tool" then
            if i == 1 or messages[i - 1].role ~= "tool" then out:mark("<|observation|>") end
            out:mark("<tool_response>"):text(lib.content(m)):mark("</tool_response>")
        end
    end
    if opts.add_generation_prompt ~= false then
        out:mark("<|assistant|>"):mark(opts.enable_thinking == false and style.empty or "<think>")
    end
end

M.stop = { "<|endoftext|>", "<|user|>", "<|observation|>" }

return M
