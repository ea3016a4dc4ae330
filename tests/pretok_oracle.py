"""Where the published pre-tokenizer expressions cut a text, computed with the tokenizers package.

  pretok_oracle.py --write FILE    write the splits of the corpus below (reviewed as a diff, committed as test data)
  pretok_oracle.py --check FILE    recompute and compare with FILE
  pretok_oracle.py --fuzz PROGRAM  random texts against our implementation: PROGRAM --serve reads [[name, text], ...] as JSON on stdin
                                   and writes the end offsets of all pieces, in bytes, as JSON on stdout

Exit status 77: the tokenizers package is not installed."""
import json, random, subprocess, sys

try:
    from tokenizers import Regex, pre_tokenizers
except ImportError:
    sys.exit(77)

SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
# deepseek-llm's cased letters as first-last pairs.
CASED = """41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5 3F7-481
48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D
1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102
2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE
2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"""
cased = "".join("-".join(chr(int(x, 16)) for x in r.split("-")) for r in CASED.split())

PUBLISHED = {
    "glm4": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*""" + SPACES,
    ],
    "deepseek-llm": [
        "[\r\n]", r"\s?[" + cased + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
    ],
    "kimi-k2": [
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTION + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*"
        + CONTRACTION + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    ],
}

CORPUS = [
    "", " ", "  ", "a", "Hello, world!", " leading", "trailing ", "trailing  ", "two  spaces", "three   spaces", "a\tb\t\tc", "a\n",
    "\na", "a\n\nb", "a \n b", "a\r\nb", "a\r\n\r\n  b", " \n \n x", "\n \n", " \t\n\t x", "x \n", "x\n  ", "\r\r\n", "a\u00a0b",
    "\u3000全角\u3000 x", "a\u2028b\u2029c", "a\x0bb\x0cc", "\x85x", "a\u180eb", "a\u200bb", "\ufeffbom", "\x00\x01\x02", "a\x00b",
    "don't we'll I'M they'RE you'Ve he'D '", "'s 't 're 've 'm 'll 'd", "it'ſ", "rock'n'roll ''quoted''", "'sun 'tis 'remain",
    "ALL'S WELL'll", "1", "12", "123", "1234", "1234567", "3.14", "1,000,000.00", " 42", "x1y22z333w4444", "٣٤٥٦٧", "½²Ⅷ①", "1st 2nd",
    "12ab34", "０１２３４", "你好，世界！", "日本語テキスト", "カタカナ ひらがな 漢字", "中文abc中文123", "한국어 텍스트", "漢字かな交じり文 and English", "々〆〇〻", "𠀀𠮷野家", "ー・ヽ",
    "Привет мир", "العربية والإنجليزية", "हिन्दी में", "ไทยภาษา", "ελληνικά", "ՀԱՅԵՐԵՆ հայերեն", "ქართული", "ꭰꮿ Ꭰᏽ", "ǅ ǈ", "ﬁ ﬂ ﬀ", "ªº",
    "ʰʷ", "camelCase", "PascalCaseHTTPServer", "snake_case", "SCREAMING_SNAKE", "iPhone", "McDonald's", "HTML5", "aB", "Ab", "AB", "ABc",
    "aBC", "aBcD's", "naïve café e\u0301 n\u0303", "\u0301x", " \u0301", "a\u0301\u0302b", "z\u20dd", "A\u0301B", "\u0301\u0301",
    "x=(a+b)*c[0]; // code", "if (a != b) {\n\treturn;\n}\n", "#include <stdio.h>\n\n\nint", "http://a.b/c?d=e&f=g#h", "a@b.c",
    "C:\\dir\\file", "...!!!", "---\n---\n", "-->\n\n", "$100 €5 £3 ¥7", "+-*/ ±×÷", "_a__b", "@user #tag", "`code` ~x~ ^y^ |z|",
    "\"quote\" 'single' “curly” ‘curly’", "…—–", "！？；：", "🐙 🙂👩‍💻", "👍🏽", "🇩🇪🇫🇷", "a🙂b", " 🙂", "☃\n\n", "©®™", "\ue000\U000f0000",
    "\U0001d400\U0001d7ce", "\U00010400x", "\u2126\u212a\u212b", "\u212a's it\u212a", "end.  \n\n  Next",
    "tab\tand\nnewline\r\n\r\n  indent", "a  b   c    d", "　。、", "x　。y", "a\u0378b", "  \n  \n  a", "\t\t\tif x:\n",
]


def splitter(name):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in PUBLISHED[name]])


def ends(pre, text):
    out, n = [], 0
    for piece, _ in pre.pre_tokenize_str(text) if text else []:
        n += len(piece.encode())
        out.append(n)
    assert n == len(text.encode())
    return out


def corpus():
    return {name: {t: ends(splitter(name), t) for t in CORPUS} for name in PUBLISHED}


def dump(data):
    lines = []
    for name, cases in data.items():
        rows = ",\n".join("  " + json.dumps([t, e], ensure_ascii=True) for t, e in cases.items())
        lines.append(f"{json.dumps(name)}: [\n{rows}\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def fuzz(program):
    rng = random.Random(20)
    alphabet = list("  \t\n\r\u00a0\u3000'''sStTrReEmMlLdDvVaAbBzZ019.,!-_$\"/<|") + list(
        "éßǅªʰ\u0301\u20dd你好々〇ぁアー한가ПриالעहिΩ\u212aſﬁ½²Ⅷ٣…“”！。、🙂👍🏽\u200d\u200b\x00\x0b\x85\u2028")
    jobs = [[name, "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 24)))] for name in PUBLISHED for _ in range(3000)]
    got = json.loads(subprocess.run([program, "--serve"], input=json.dumps(jobs), capture_output=True, text=True, check=True).stdout)
    pre = {name: splitter(name) for name in PUBLISHED}
    wrong = [(n, t, g, ends(pre[n], t)) for (n, t), g in zip(jobs, got, strict=True) if g != ends(pre[n], t)]
    for n, t, g, w in wrong[:10]:
        print(f"{n} {t!r}: {g}, published {w}")
    print(f"{len(jobs) - len(wrong)} of {len(jobs)} random texts are cut alike")
    return bool(wrong)


def main():
    mode, path = sys.argv[1:]
    if mode == "--fuzz":
        return fuzz(path)
    text = dump(corpus())
    if mode == "--write":
        open(path, "w", encoding="ascii").write(text)
        return False
    same = json.load(open(path, encoding="ascii")) == json.loads(text)
    print("the stored splits are the published ones" if same else "the stored splits differ from the published ones")
    return not same


sys.exit(main())
