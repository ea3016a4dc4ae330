-- Chat templates: from a list of messages to the text that a model was trained to continue.
--
-- A template is a Lua file that returns a table:
--   name              short name
--   detect(source, info)  how well the template that the model file carries (source; nil if none) fits: a number, or false
--   render(messages, opts)  list of segments {text=, special=}; special=true: control tokens in it are meant (templates.lib says more)
--   thinking_default  whether the model thinks when nobody asks for it or against it
--   think_open, think_close  marks around a thought in the model's output; absent when it has none
--   stop              texts of the tokens that end an answer
--
-- messages: { {role="system"|"user"|"assistant"|"tool", content=text or list of parts,
--   reasoning=, tool_calls=, tool_call_id=, name=}, ... }
-- opts: enable_thinking (nil: the template's default), add_generation_prompt (default true), tools (values or JSON texts),
--   reasoning_effort, clear_thinking, source (the template of the model file, for details that differ between files)

local M = {}

local NAMES = { "glm5", "glm52", "deepseek_v2", "deepseek_v3", "deepseek_r1", "deepseek_v31", "kimi_k2" }

-- Without a usable template in the file: what the architecture and the tokenizer say.
local function by_model(info)
    local pre = info.pre
    if info.arch == "glm-dsa" then return (info.context or 0) >= 1048576 and "glm52" or "glm5" end
    if pre == "glm4" or pre == "chatglm-bpe" then return "glm5" end
    if pre == "deepseek-v3" then return "deepseek_v3" end
    if pre == "deepseek-llm" then return "deepseek_v2" end
    if pre == "kimi-k2" then return "kimi_k2" end
end

local function check(t, where)
    if type(t) ~= "table" or type(t.render) ~= "function" then
        return nil, where .. ": not a chat template (it must return a table with a function render)"
    end
    t.name = t.name or where
    t.stop = t.stop or {}
    return t
end

--- Names of the templates that come with the program.
function M.names()
    return { table.unpack(NAMES) }
end

--- A template by its name; nil and a message if there is none.
function M.get(name)
    for _, n in ipairs(NAMES) do
        if n == name then return require("templates." .. n) end
    end
    return nil, ("no chat template is called %q; there are %s"):format(tostring(name), table.concat(NAMES, ", "))
end

--- A template from a file of the user's; nil and a message if it cannot be used.
function M.load(path)
    local chunk, err = loadfile(path, "t")
    if not chunk then return nil, err end
    local ok, t = pcall(chunk)
    if not ok then return nil, tostring(t) end
    return check(t, path)
end

--- The template for a model. source: the template text of its file or nil. info: arch, pre, context (its trained length).
-- Returns the template and how it was found ("file" or "model"), or nil and a message.
function M.choose(source, info)
    local best, best_score = nil, 0
    for _, name in ipairs(NAMES) do
        local t = require("templates." .. name)
        local score = source and t.detect(source, info) or 0
        if score and score > best_score then best, best_score = t, score end
    end
    if best then return best, "file" end
    local name = by_model(info)
    if name then return require("templates." .. name), "model" end
    return nil, ("no chat template is known for this model (architecture %s, pre-tokenizer %s); give one with --chat-template FILE.lua")
        :format(info.arch or "unknown", info.pre or "unknown")
end

local ROLES = { system = true, user = true, assistant = true, tool = true }
local OPTIONS = { enable_thinking = "boolean", add_generation_prompt = "boolean", tools = "table", reasoning_effort = "string",
                  clear_thinking = "boolean", source = "string" }

local function check_messages(messages)
    if type(messages) ~= "table" then error("messages: a list is expected", 0) end
    for i, m in ipairs(messages) do
        if type(m) ~= "table" then error(("messages[%d]: a table is expected, got %s"):format(i, type(m)), 0) end
        if not ROLES[m.role] then
            error(("messages[%d].role: system, user, assistant or tool is expected, got %s"):format(i, tostring(m.role)), 0)
        end
        local kind = type(m.content)
        if kind ~= "string" and kind ~= "table" and kind ~= "nil" then
            error(("messages[%d].content: a text or a list of parts is expected, got %s"):format(i, kind), 0)
        end
    end
end

local function check_options(opts)
    for k, v in pairs(opts) do
        if not OPTIONS[k] then error(("options: %s is not known"):format(tostring(k)), 0) end
        if type(v) ~= OPTIONS[k] then error(("options: %s: %s is expected, got %s"):format(k, OPTIONS[k], type(v)), 0) end
    end
end

-- A prompt that ends in an open thought: the model's first words are part of it.
local function in_thought(t, segments)
    local last = segments[#segments]
    if not (t.think_open and last and last.special) then return false end
    local text = last.text:gsub("%s+$", "")
    return text:sub(-#t.think_open) == t.think_open
end

--- Render a conversation. Returns the segments and whether the answer begins inside a thought. Raises an error with a message for what the
-- template cannot say.
function M.render(t, messages, opts)
    opts = opts or {}
    check_messages(messages)
    check_options(opts)
    local segments = t.render(messages, opts)
    for i, s in ipairs(segments) do
        if type(s) ~= "table" or type(s.text) ~= "string" then
            error(("chat template %s: segment %d is not a table with a text"):format(t.name, i), 0)
        end
    end
    return segments, in_thought(t, segments)
end

return M
