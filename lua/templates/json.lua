-- JSON as chat templates need it: objects keep the order of their keys, and text is written the way the models' training data was written
-- (", " and ": " as separators, non-ASCII characters kept).

local M = {}

M.null = setmetatable({}, { __name = "json.null", __tostring = function() return "null" end })

-- Metatables mark what decode() made, so that encode() gives it back in the same order and with the same brackets.
local array_mt = { __name = "json.array" }
local keys_of = setmetatable({}, { __mode = "k" }) -- object -> list of its keys in order

--- Mark a table as an array (an empty table is an object otherwise).
function M.array(t)
    return setmetatable(t, array_mt)
end

--- The keys of an object, in the order of the text that it came from; sorted when it was made by hand.
function M.keys(t)
    local known = keys_of[t]
    if known then return known end
    local keys = {}
    for k in pairs(t) do keys[#keys + 1] = k end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    return keys
end

local short = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function quote(s)
    return '"' .. s:gsub('[\0-\31"\\]', function(c) return short[c] or string.format("\\u%04x", c:byte()) end) .. '"'
end

-- The shortest decimal that reads back as the same number; whole floats keep ".0".
local function number(n)
    if math.type(n) == "integer" then return string.format("%d", n) end
    if n ~= n or n == math.huge or n == -math.huge then error("JSON has no number " .. tostring(n), 0) end
    for digits = 15, 17 do
        local s = string.format("%." .. digits .. "g", n)
        if tonumber(s) == n then return s:find("[.e]") and s or s .. ".0" end
    end
end

local encode

local function encode_table(t, depth)
    if depth > 100 then error("a JSON value is nested more than 100 deep", 0) end
    local out = {}
    if getmetatable(t) == array_mt or (#t > 0 and not keys_of[t]) then
        for i = 1, #t do out[i] = encode(t[i], depth + 1) end
        return "[" .. table.concat(out, ", ") .. "]"
    end
    for _, k in ipairs(M.keys(t)) do
        if t[k] ~= nil then out[#out + 1] = quote(tostring(k)) .. ": " .. encode(t[k], depth + 1) end
    end
    return "{" .. table.concat(out, ", ") .. "}"
end

function encode(v, depth)
    local kind = type(v)
    if v == M.null then return "null" end
    if kind == "string" then return quote(v) end
    if kind == "number" then return number(v) end
    if kind == "boolean" then return tostring(v) end
    if kind == "table" then return encode_table(v, depth) end
    error("a " .. kind .. " cannot be written as JSON", 0)
end

--- JSON text of a value; raises an error for what JSON cannot say.
function M.encode(v)
    return encode(v, 0)
end

local function fail(s, at, what)
    error(string.format("JSON, byte %d: %s", math.min(at, #s + 1), what), 0)
end

local escapes = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function unicode_escape(s, at)
    local hex = s:match("^u(%x%x%x%x)", at)
    if not hex then fail(s, at, "a \\u without four digits") end
    local cp, len = tonumber(hex, 16), 5
    if cp >= 0xD800 and cp < 0xDC00 then
        local low = s:match("^\\u([dD][c-fC-F]%x%x)", at + 5)
        if low then cp, len = 0x10000 + (cp - 0xD800) * 1024 + tonumber(low, 16) - 0xDC00, 11 end
    end
    if cp >= 0xD800 and cp < 0xE000 then cp = 0xFFFD end -- half a surrogate pair is no character
    return utf8.char(cp), at + len
end

local function decode_string(s, at)
    local out, i = {}, at + 1
    while true do
        local plain, stop = s:match('^([^"\\%c]*)()', i)
        out[#out + 1], i = plain, stop
        local c = s:sub(i, i)
        if c == '"' then return table.concat(out), i + 1 end
        if c == "\127" then -- a control character for %c, not for JSON
            out[#out + 1], i = c, i + 1
        elseif c ~= "\\" then
            fail(s, i, c == "" and "a string does not end" or "a raw control byte in a string")
        else
            local e = s:sub(i + 1, i + 1)
            if e == "u" then
                out[#out + 1], i = unicode_escape(s, i + 1)
            elseif escapes[e] then
                out[#out + 1], i = escapes[e], i + 2
            else
                fail(s, i, "an unknown escape")
            end
        end
    end
end

local function decode_number(s, at)
    local text, stop = s:match("^(-?%d+%.?%d*[eE]?[+-]?%d*)()", at)
    local n = text and not text:find("^-?0%d") and not text:find("%.$") and not text:find("%.[eE]") and tonumber(text)
    if not n then fail(s, at, "a value was expected") end
    return n, stop
end

local decode

local function skip(s, at)
    return s:match("^[ \t\r\n]*()", at)
end

local function decode_array(s, at, depth)
    local out = M.array({})
    at = skip(s, at + 1)
    if s:sub(at, at) == "]" then return out, at + 1 end
    while true do
        out[#out + 1], at = decode(s, at, depth + 1)
        at = skip(s, at)
        local c = s:sub(at, at)
        if c == "]" then return out, at + 1 end
        if c ~= "," then fail(s, at, "',' or ']' was expected") end
        at = at + 1
    end
end

local function decode_object(s, at, depth)
    local out, keys = {}, {}
    keys_of[out] = keys
    at = skip(s, at + 1)
    if s:sub(at, at) == "}" then return out, at + 1 end
    while true do
        at = skip(s, at)
        if s:sub(at, at) ~= '"' then fail(s, at, "a key was expected") end
        local key
        key, at = decode_string(s, at)
        at = skip(s, at)
        if s:sub(at, at) ~= ":" then fail(s, at, "':' was expected") end
        if out[key] == nil then keys[#keys + 1] = key end
        out[key], at = decode(s, at + 1, depth + 1)
        at = skip(s, at)
        local c = s:sub(at, at)
        if c == "}" then return out, at + 1 end
        if c ~= "," then fail(s, at, "',' or '}' was expected") end
        at = at + 1
    end
end

function decode(s, at, depth)
    if depth > 100 then fail(s, at, "nested more than 100 deep") end
    at = skip(s, at)
    local c = s:sub(at, at)
    if c == "{" then return decode_object(s, at, depth) end
    if c == "[" then return decode_array(s, at, depth) end
    if c == '"' then return decode_string(s, at) end
    for word, value in pairs({ ["true"] = true, ["false"] = false, null = M.null }) do
        if s:sub(at, at + #word - 1) == word then return value, at + #word end
    end
    return decode_number(s, at)
end

--- The value that a JSON text holds; objects remember the order of their keys. Raises an error for anything that is not JSON.
function M.decode(s)
    local v, at = decode(s, 1, 0)
    at = skip(s, at)
    if at <= #s then fail(s, at, "text after the value") end
    return v
end

return M
