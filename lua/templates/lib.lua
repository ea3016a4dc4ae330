-- What chat templates share: building segments, and reading messages.
--
-- A segment is {text=, special=}. special=true is text of the template itself, in which control tokens are commands; special=false is text
-- of a person, a client or the model, in which they are only characters. Each segment is tokenised on its own.

local json = require "templates.json"

local M = { json = json }

local Out = {}
Out.__index = Out

local function add(self, text, special)
    if text == "" then return self end
    local last = self.list[#self.list]
    if last and last.special == special then
        last.parts[#last.parts + 1] = text
    else
        self.list[#self.list + 1] = { special = special, parts = { text } }
    end
    return self
end

--- Template text.
function Out:mark(text)
    return add(self, text, true)
end

--- Text from outside, or template text without control tokens that must be tokenised together with it.
function Out:text(text)
    return add(self, text, false)
end

function Out:segments()
    local segments = {}
    for i, s in ipairs(self.list) do segments[i] = { text = table.concat(s.parts), special = s.special } end
    return segments
end

function M.new()
    return setmetatable({ list = {} }, Out)
end

local SPACE = "[ \t\n\r\v\f]*"

function M.strip(s)
    return (s:gsub("^" .. SPACE, ""):gsub(SPACE .. "$", ""))
end

--- True when the model's own template (nil if the file has none) contains a text.
function M.has(source, text)
    return source ~= nil and source:find(text, 1, true) ~= nil
end

--- The text of a message's content: a string, nothing, or a list of parts of type "text".
function M.content(m)
    local c = m.content
    if c == nil or c == json.null then return "" end
    if type(c) == "string" then return c end
    local out = {}
    for _, part in ipairs(c) do
        if type(part) == "string" then
            out[#out + 1] = part
        elseif part.type == "text" then
            out[#out + 1] = part.text
        else
            error(("content of type %q is not supported: this model reads text only"):format(tostring(part.type)), 0)
        end
    end
    return table.concat(out)
end

--- An assistant message's thought and answer. The thought may be a field of its own or stand in the content before "</think>".
-- nil when there is none.
function M.thought(m)
    local content = M.content(m)
    local reasoning = m.reasoning
    if reasoning == nil or reasoning == json.null then reasoning = m.reasoning_content end
    if type(reasoning) == "string" then return reasoning, content end
    local before, after = content:match("^(.-)</think>(.*)$")
    if not before then return nil, content end
    after = M.after_last(after, "</think>")
    return M.after_last(before, "<think>"), after
end

--- What stands behind the last occurrence of a mark, or all of it.
function M.after_last(s, mark)
    local at = 1
    while true do
        local _, stop = s:find(mark, at, true)
        if not stop then return s:sub(at) end
        at = stop + 1
    end
end

--- Position of the last message of a role, 0 if there is none.
function M.last_of(messages, role)
    for i = #messages, 1, -1 do
        if messages[i].role == role then return i end
    end
    return 0
end

--- Tool calls of a message as {id=, type=, name=, arguments=value, raw=JSON text}; the list is empty when there are none.
function M.calls(m)
    local out = {}
    if type(m.tool_calls) ~= "table" or m.tool_calls == json.null then return out end
    for i, call in ipairs(m.tool_calls) do
        local f = call["function"] or call
        local arguments, raw = f.arguments, f.arguments
        if arguments == nil or arguments == "" or arguments == json.null then
            arguments, raw = {}, "{}"
        elseif type(arguments) == "string" then
            local ok, value = pcall(json.decode, arguments)
            if not ok then error(("tool_calls[%d].arguments: %s"):format(i, value), 0) end
            arguments = value
        else
            raw = json.encode(arguments)
        end
        out[i] = { id = call.id, type = call.type or "function", name = f.name, arguments = arguments, raw = raw }
    end
    return out
end

--- Tool descriptions as values; each may be given as JSON text, which keeps the order of its keys.
function M.tools(opts)
    local out = {}
    for i, tool in ipairs(opts.tools or {}) do
        out[i] = type(tool) == "string" and json.decode(tool) or tool
    end
    return out
end

function M.no_tools(opts, name)
    if opts.tools and #opts.tools > 0 then error(("the chat template %s has no way to describe tools"):format(name), 0) end
end

return M
