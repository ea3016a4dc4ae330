-- What DeepSeek's templates have in common: system messages are gathered at the head, and the marks of tool calls.

local lib = require "templates.lib"

local M = {}

M.BOS = "<｜begin▁of▁sentence｜>"
M.EOS = "<｜end▁of▁sentence｜>"
M.USER = "<｜User｜>"
M.ASSISTANT = "<｜Assistant｜>"

--- BOS and all system messages, joined by an empty line.
function M.head(out, messages)
    local system = {}
    for _, m in ipairs(messages) do
        if m.role == "system" then system[#system + 1] = lib.content(m) end
    end
    out:mark(M.BOS):text(table.concat(system, "\n\n"))
end

--- An answer without the thought that may stand in front of it.
function M.answer(m)
    return lib.after_last(lib.content(m), "</think>")
end

-- V3 and R1 fence the arguments as Markdown; V3.1 does not.
local function call(out, c, fenced)
    out:mark("<｜tool▁call▁begin｜>")
    if fenced then
        out:text(c.type):mark("<｜tool▁sep｜>"):text(c.name .. "\n```json\n" .. c.raw .. "\n```")
    else
        out:text(c.name):mark("<｜tool▁sep｜>"):text(c.raw)
    end
    out:mark("<｜tool▁call▁end｜>")
end

function M.calls(out, calls, fenced)
    out:mark("<｜tool▁calls▁begin｜>")
    for i, c in ipairs(calls) do
        if i > 1 and fenced then out:text("\n") end
        call(out, c, fenced)
    end
    out:mark("<｜tool▁calls▁end｜>"):mark(M.EOS)
end

--- V3 and R1. prompt: what stands behind <｜Assistant｜> when an answer is to be generated.
function M.classic(out, messages, opts, prompt)
    M.head(out, messages)
    local outputs = false -- inside a run of tool results
    local asked = true    -- the next answer needs its <｜Assistant｜>
    for _, m in ipairs(messages) do
        if outputs and m.role ~= "tool" and m.role ~= "system" then
            out:mark("<｜tool▁outputs▁end｜>")
            outputs, asked = false, m.role ~= "assistant"
        end
        if m.role == "user" then
            out:mark(M.USER):text(lib.content(m))
            asked = true
        elseif m.role == "assistant" then
            local calls = lib.calls(m)
            if asked then out:mark(M.ASSISTANT) end
            out:text(M.answer(m))
            if #calls > 0 then M.calls(out, calls, true) else out:mark(M.EOS) end
            asked = true
        elseif m.role == "tool" then
            if outputs then out:text("\n") else out:mark("<｜tool▁outputs▁begin｜>") end
            out:mark("<｜tool▁output▁begin｜>"):text(lib.content(m)):mark("<｜tool▁output▁end｜>")
            outputs = true
        end
    end
    if outputs then
        out:mark("<｜tool▁outputs▁end｜>") -- the answer goes on directly behind the results
    elseif opts.add_generation_prompt ~= false then
        out:mark(M.ASSISTANT .. prompt)
    end
end

M.stop = { M.EOS }

return M
