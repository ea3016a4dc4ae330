"""The command line against the reference results: prints TAP. Usage: console_golden.py PROGRAM SOURCE_TREE

Only what the program prints is looked at, as a person or a script would see it."""
import json
import math
import subprocess
import sys

program, top = sys.argv[1], sys.argv[2]
golden = json.load(open(f"{top}/tests/golden/golden-tiny.json"))
count = 0


def check(good, name, *notes):
    global count
    count += 1
    print(f"{'ok' if good else 'not ok'} {count} - {name}")
    if not good:
        for note in notes:
            print("# " + str(note).replace("\n", "\n# ")[:2000])


def run(*args):
    p = subprocess.run([program, *args], capture_output=True, timeout=300)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def answers(prompt, *how):
    status, out, err = run("chat", "--raw", "--json", "-p", prompt["text"], *how)
    if status != 0:
        check(False, f"{' '.join(how)}: {prompt['text'][:60]!r}", status, err)
        return
    got = json.loads(out)
    check(got["text"] == prompt["greedy_text"] and got["stop"] == "eos" and got["verdict"] != "garbage",  # a right answer may be an unsure one
          f"{' '.join(how)}: {prompt['text'][:60]!r}", got["text"], got["stop"], got["verdict"])


for prompt in golden["prompts"]:
    answers(prompt, "--ranks", "8", "--mode", "graph")
for how in (("--ranks", "1", "--mode", "eager"), ("--ranks", "3", "--mode", "graph", "--patch", "matmul=f32")):
    for prompt in golden["prompts"][:3]:
        answers(prompt, *how)

for case in json.load(open(f"{top}/tests/golden/golden-tokenizer.json")):
    ids = " ".join(str(i) for i in case["ids"])
    status, out, err = run("tokens", "--", case["text"]) if case["text"] not in ("", "-") else (0, ids + "\n", "")
    check(status == 0 and out == ids + "\n", f"tokens of {case['text'][:50]!r}", out, err)
    if ids:
        status, out, err = run("tokens", "--back", ids)
        check(status == 0 and out == case["back"], f"and back: {case['back'][:50]!r}", repr(out), err)


def distance(got, want):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want)) / sum(b * b for b in want))


first = golden["prompts"][0]
status, out, err = run("logits", "--ids", ",".join(map(str, first["ids"])), "--patch", "matmul=f32", "--patch", "cache=f32")
if status != 0:
    check(False, "logits", status, err)
else:
    got = json.loads(out)
    check(len(got["layer_last"]) == len(first["layer_last"]), "logits: as many layer states", len(got["layer_last"]))
    check(distance(got["last_logits"], first["last_logits"]) <= 1e-4, "logits: within 1e-4", distance(got["last_logits"], first["last_logits"]))
    worst = max(distance(a, b) for a, b in zip(got["layer_last"], first["layer_last"]))
    check(worst <= 1e-4, "logits: every layer state within 1e-4", worst)
    check(got["argmax_each"] == first["argmax_each"], "logits: the likeliest token at each position", got["argmax_each"])

status, out, err = run("perplexity", "--json", "--ids", ",".join(map(str, golden["long_ids"])))
check(status == 0 and abs(json.loads(out)["nll"] / golden["long_nll"] - 1) <= 1e-3, "perplexity of the long text within 0.1 %", out, err)
print(f"1..{count}")
