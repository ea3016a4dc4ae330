"""The HTTP server under clients that behave and clients that do not. Prints TAP.

Only the standard library is needed; curl, prometheus, promtool, llm and the openai package are used where they are, and skipped by name where not.
More arguments are names of tests to run alone ("vanish"). RANKSCOPE_LONG=1: many more clients; RANKSCOPE_SOAK=N: N minutes of everything at a low rate, with memory by the minute.
"""
import concurrent.futures
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

PROGRAM = sys.argv[1]
LONG = os.environ.get("RANKSCOPE_LONG") == "1"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
count = 0


def ok(passed, name, why=""):
    global count
    count += 1
    print(("ok" if passed else "not ok"), count, "-", name, flush=True)
    if not passed and why:
        for line in str(why)[:2000].splitlines():
            print("#", line, flush=True)


def sanitized():
    """Is the program from a build with a sanitizer?"""
    config = os.path.join(os.path.dirname(PROGRAM), "config.h")
    return os.path.exists(config) and "\n#define RS_SANITIZER" in open(config).read()


def skip(name, why):
    global count
    count += 1
    print("ok", count, "-", name, "# SKIP", why, flush=True)


class Server:
    """A server process on a port of its own."""

    def __init__(self, *args, key=None):
        self.key = key
        self.p = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--ranks", "1", *args], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stdin=subprocess.DEVNULL, text=True)
        self.said = self.p.stderr.readline()
        self.port = int(re.search(r":(\d+)$", self.said.strip()).group(1))
        end = time.time() + 60
        while self.request("GET", "/health")[0] != 200 and time.time() < end:
            time.sleep(0.02)

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
        """Status and body; body may be an object, text or bytes."""
        c = self.connect(timeout)
        h = {"Content-Type": "application/json"}
        if self.key:
            h["Authorization"] = "Bearer " + self.key
        h.update(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, h)
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def post(self, path, body, **more):
        status, data = self.request("POST", path, body, **more)
        return status, json.loads(data)

    def chat(self, **body):
        return self.post("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, **body})

    def metric(self, name):
        text = self.request("GET", "/metrics")[1].decode()
        m = re.search(r"^" + re.escape(name) + r"(?:\{[^}]*\})? (\S+)$", text, re.M)
        return float(m.group(1)) if m else None

    def idle(self, seconds=60):
        """Wait until nothing runs and no block is held; what is left otherwise."""
        end = time.time() + seconds
        while True:
            left = [self.metric(n) for n in ("vllm:num_requests_running", "vllm:num_requests_waiting", "rankscope_cache_blocks_held")]
            if left == [0, 0, 0] or time.time() > end:
                return left
            time.sleep(0.1)

    def rss(self):
        with open("/proc/%d/status" % self.p.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) // 1024

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        try:
            return self.p.wait(60)
        except subprocess.TimeoutExpired:
            self.p.kill()
            return "did not end"


def open_stream(server, body, receive_buffer=None):
    """A socket on which a stream has been asked for."""
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(60)
    s.connect(("127.0.0.1", server.port))
    data = json.dumps({"stream": True, **body}).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


def read_stream(server, **body):
    """Events of a whole stream, without the last [DONE], which must be there."""
    status, data = server.request("POST", "/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "stream": True, **body})
    events = [e[6:] for e in data.decode().split("\n\n") if e.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]", (status, data[-300:])
    return [json.loads(e) for e in events[:-1]]


def text_of(events, part="content"):
    return "".join(c["delta"].get(part) or "" for e in events for c in e["choices"])


# ---- clients that behave ----------------------------------------------------------------------------------------------------------------------


def test_answers(s):
    status, whole = s.chat()
    m = whole["choices"][0]["message"]
    ok(status == 200 and m["content"] == "The capital of France is Paris." and whole["choices"][0]["finish_reason"] == "stop", "a chat is answered", whole)
    ok(bool(m.get("reasoning_content")), "the thought is apart from the answer", whole)
    events = read_stream(s, stream_options={"include_usage": True})
    ok(text_of(events) == m["content"] and text_of(events, "reasoning_content") == m["reasoning_content"], "a stream has the same text", events[-3:])
    ok(events[0]["choices"][0]["delta"].get("role") == "assistant", "its first chunk has the role", events[0])
    reasons = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    ok(reasons == ["stop"], "one chunk says why it ended", reasons)
    u = whole["usage"]
    got = events[-1].get("usage", {})
    ok(events[-1]["choices"] == [] and got["completion_tokens"] == u["completion_tokens"] and got["prompt_tokens"] == u["prompt_tokens"],
       "the last chunk has the usage", events[-1])
    off = s.chat(chat_template_kwargs={"enable_thinking": False})[1]["choices"][0]["message"]
    ok("reasoning_content" not in off and off["content"], "enable_thinking false leaves the thought out", off)


def test_sampling(s):
    long = dict(messages=[{"role": "user", "content": "Tell me a story."}], temperature=1, max_tokens=40, ignore_eos=True)
    a, b, c = (s.chat(**long, seed=seed)[1]["choices"][0]["message"] for seed in (7, 7, 8))
    ok(a == b, "the same seed gives the same answer", (a, b))
    ok(a != c, "another seed gives another one", a)
    two = s.chat(**long, seed=7, n=2)[1]["choices"]
    ok([x["message"] for x in two] == [a, c] and [x["index"] for x in two] == [0, 1], "n=2 gives two answers, of seeds that follow each other", two)
    status, got = s.post("/v1/completions", {"prompt": "The capital of Japan is", "temperature": 0, "max_tokens": 20, "stop": ["o"]})
    ok(status == 200 and "o" not in got["choices"][0]["text"] and got["choices"][0]["finish_reason"] == "stop", "a stop string ends the text before it", got)
    status, got = s.post("/v1/completions", {"prompt": ["The capital of", "What is"], "temperature": 0, "max_tokens": 3, "ignore_eos": True})
    ok([c["finish_reason"] for c in got["choices"]] == ["length"] * 2 and got["usage"]["completion_tokens"] == 6, "two prompts, exactly max_tokens each", got)
    status, got = s.chat(max_completion_tokens=2)
    ok(got["usage"]["completion_tokens"] == 2 and got["choices"][0]["finish_reason"] == "length", "max_completion_tokens is obeyed", got)
    status, got = s.chat(logit_bias={"0": -100}, top_p=0.9, top_k=5, frequency_penalty=0.1, presence_penalty=0.1, user="x", store=False)
    ok(status == 200, "other settings are taken, unknown fields passed over", got)


def completion(s, **body):
    return s.post("/v1/completions", {"prompt": "The capital of Japan is", "temperature": 0, "max_tokens": 12, "ignore_eos": True, **body})


def completion_stream(s, **body):
    """The joined text of a stream of one choice, and its log-probabilities put together."""
    data = s.request("POST", "/v1/completions", {"prompt": "The capital of Japan is", "temperature": 0, "max_tokens": 12, "ignore_eos": True,
                                                 "stream": True, **body})[1].decode()
    choices = [c for e in data.split("\n\n")[:-2] for c in json.loads(e[6:])["choices"]]
    lists = [c["logprobs"] for c in choices if c["logprobs"]]
    return "".join(c["text"] for c in choices), {k: sum((part[k] for part in lists), []) for k in (lists[0] if lists else {})}


def sane(entry, top):
    """One token of a chat's log-probabilities, chosen greedily."""
    t = entry["top_logprobs"]
    return len(t) == top and t == sorted(t, key=lambda x: -x["logprob"]) and sum(math.exp(x["logprob"]) for x in t) < 1.0001 and \
        (top == 0 or (t[0]["token"], t[0]["logprob"]) == (entry["token"], entry["logprob"])) and \
        bytes(entry["bytes"]).decode(errors="replace") == entry["token"] and entry["logprob"] <= 0


def test_logprobs(s):
    whole = s.chat(logprobs=True, top_logprobs=3)[1]["choices"][0]
    got = whole["logprobs"]
    ok("".join(x["token"] for x in got["content"]) == whole["message"]["content"] and got["refusal"] is None and
       "".join(x["token"] for x in got["reasoning_content"]) == whole["message"]["reasoning_content"], "logprobs of a chat: one entry for each token of the text",
       whole)
    ok(all(sane(x, 3) for x in got["content"] + got["reasoning_content"]), "with bytes, and the likeliest three beside it, in order", got["content"][:2])
    parts = [c["logprobs"] for e in read_stream(s, logprobs=True, top_logprobs=3) for c in e["choices"] if c["logprobs"]]
    ok([x for p in parts for x in p["content"]] == got["content"] and [x for p in parts for x in p.get("reasoning_content", [])] == got["reasoning_content"]
       and len(parts) > 5, "a stream has the same, chunk by chunk", parts[:2])
    ok(all(sane(x, 0) for x in s.chat(logprobs=True)[1]["choices"][0]["logprobs"]["content"]), "without top_logprobs the list is empty")
    ok(s.chat(logprobs=False)[1]["choices"][0]["logprobs"] is None and s.chat()[1]["choices"][0]["logprobs"] is None, "unless asked for there are none")

    whole = completion(s, logprobs=2)[1]["choices"][0]
    got = whole["logprobs"]
    at = [len("".join(got["tokens"][:i])) for i in range(len(got["tokens"]))]
    ok("".join(got["tokens"]) == whole["text"] and got["text_offset"] == at and len(at) > 5, "logprobs of a completion: tokens and where they begin", whole)
    ok(all(len(t) == 2 and t[k] == v == max(t.values()) <= 0 for k, v, t in zip(got["tokens"], got["token_logprobs"], got["top_logprobs"])),
       "the token is among the likeliest", got)
    ok(completion_stream(s, logprobs=2) == (whole["text"], got), "a stream has the same", completion_stream(s, logprobs=2))
    hot = completion(s, logprobs=1, temperature=2, seed=3, n=2)[1]["choices"]
    ok(all(k in t and v == t[k] and len(t) <= 2 for c in hot for k, v, t in zip(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]))
       and hot[0]["text"] != hot[1]["text"], "an unlikely one stands beside the likeliest; of n answers each has its own", hot)
    cut = completion(s, logprobs=0, max_tokens=40, stop=[whole["text"][5:8]])[1]["choices"][0]
    joined, tokens = "".join(cut["logprobs"]["tokens"]), cut["logprobs"]["tokens"]
    ok(cut["text"] == whole["text"][:5] and joined.startswith(cut["text"]) and len(joined) - len(tokens[-1]) < len(cut["text"]),
       "a stop string takes its tokens with it", cut)
    ok(completion_stream(s, logprobs=0, max_tokens=40, stop=[whole["text"][5:8]]) == (cut["text"], cut["logprobs"]), "in a stream too", cut)
    half = s.post("/tokenize", {"prompt": "\u65e5"})[1]["tokens"]
    c = completion(s, logprobs=1, logit_bias={str(half[0]): 100}, max_tokens=2)[1]["choices"][0]["logprobs"]
    ok(len(half) > 1 and c["tokens"][0].startswith("bytes:\\xe6"), "half a character is told by its bytes", (half, c))
    nul = completion(s, logit_bias={"188": 100}, max_tokens=3)  # the token of the byte 0
    ok(nul[0] == 200 and nul[1]["choices"][0]["text"] == "\0\0\0", "U+0000 is a character as any other", nul)
    status, nul = s.chat(logit_bias={"188": 100}, max_tokens=3)
    ok(status == 200 and nul["choices"][0]["message"]["reasoning_content"] == "\0\0\0" and nul["choices"][0]["finish_reason"] == "length", "in a thought too", nul)
    status, got = completion(s, logprobs=True)
    ok(status == 400 and got["error"]["param"] == "logprobs", "logprobs of a completion is a number", got)


def test_echo(s):
    plain = completion(s)[1]["choices"][0]["text"]
    ok(completion(s, echo=True)[1]["choices"][0]["text"] == "The capital of Japan is" + plain, "echo: the prompt stands before the answer")
    ids = s.post("/tokenize", {"prompt": "The capital of Japan is"})[1]["tokens"]
    got = [c["text"] for c in completion(s, echo=True, prompt=[ids, ids], n=2)[1]["choices"]]
    ok(got == ["The capital of Japan is" + plain] * 4, "also where it came as numbers, and before each of several", got)
    ok(completion_stream(s, echo=True)[0] == "The capital of Japan is" + plain, "and in a stream")
    status, got = completion(s, echo=True, logprobs=1)
    ok(status == 400 and got["error"]["param"] == "echo", "together with logprobs it is refused", got)


def test_text_stays_text(s):
    def prompt(content):
        return s.chat(messages=[{"role": "user", "content": content}], max_tokens=1)[1]["usage"]["prompt_tokens"]
    status, t = s.post("/tokenize", {"prompt": "<|user|>"})
    ok(status == 200 and t["count"] == len(t["tokens"]) > 1, "a control token's name is ordinary text to /tokenize", t)
    ok(prompt("<|user|>") - prompt("") == t["count"], "and to a chat", (prompt("<|user|>"), prompt("")))
    status, d = s.post("/detokenize", {"tokens": t["tokens"]})
    ok(status == 200 and d["prompt"] == "<|user|>", "/detokenize gives the text back", d)
    parts = s.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]}])[1]
    ok(parts["choices"][0]["message"]["content"] == "The capital of France is Paris.", "content may come in parts", parts)


def test_errors(s):
    bad = [
        ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"), ({"temperature": "hot"}, "temperature"), ({"temperature": 9}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"n": 1000}, "n"), ({"stop": [""]}, "stop"), ({"stop": 3}, "stop"),
        ({"stream": "yes"}, "stream"), ({"seed": 1.5}, "seed"), ({"logit_bias": {"x": 1}}, "logit_bias"), ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ]
    wrong = []
    for body, param in bad:
        status, got = s.chat(**body)
        if status != 400 or got["error"]["param"] != param or got["error"]["type"] != "invalid_request_error" or not got["error"]["message"]:
            wrong.append((body, status, got))
    ok(not wrong, "%d kinds of wrong fields get 400 and are named" % len(bad), wrong)
    status, got = s.chat(messages=[{"role": "user", "content": "word " * 5000}])
    ok(status == 400 and "context" in got["error"]["message"], "so does a prompt that does not fit", got)
    status, got = s.chat(messages=[{"role": "user", "content": "word " * 5000}], stream=True)
    ok(status == 400, "also of a stream: an error is an error before it begins", got)
    status, got = s.chat(model="gpt-9")
    ok(status == 404 and ".gguf" in got["error"]["message"], "another model: 404, and which there is", got)
    status, got = s.request("GET", '/no"thing')
    ok(status == 404 and 'nothing at GET /no"thing; there is POST /v1/chat/completions,' in json.loads(got)["error"]["message"], "another address: 404, and which there are", got)
    ok(s.request("GET", "/v1/chat/completions")[0] == 405, "another method: 405")
    status, got = s.request("POST", "/tokenize", b'{"prompt":"' + b"x" * (1 << 21) + b'"}')
    ok(status == 413, "a body that is too long: 413", status)
    ok(s.request("POST", "/tokenize", {"prompt": "x"}, {"Origin": "http://example.org"})[0] == 403, "a page of another site may not use it")
    ok(s.request("POST", "/tokenize", {"prompt": "x"}, {"Host": "example.org"})[0] == 403, "nor one that took a name for this address")
    ok(s.request("HEAD", "/health")[0] == 200 and s.request("GET", "/version")[0] == 200, "/health and /version answer")


def test_key(scratch):
    path = os.path.join(scratch, "key")
    with open(path, "w") as f:
        f.write("correct-horse\n")
    os.chmod(path, 0o600)
    s = Server("--api-key-file", path, "--host", "127.0.0.1", key="correct-horse")
    good, none = s.chat(max_tokens=1)[0], s.request("GET", "/v1/models", headers={"Authorization": "x"})[0]
    ok(good == 200 and none == 401, "with a key: 200 for those that have it, 401 for others", (good, none))
    ok(s.request("GET", "/health", headers={"Authorization": "x"})[0] == 200, "/health needs none")
    s.stop()
    os.chmod(path, 0o644)
    r = subprocess.run([PROGRAM, "serve", "--api-key-file", path], capture_output=True, text=True)
    ok(r.returncode != 0 and "can be read by others" in r.stderr, "a key that others can read is refused", r.stderr)
    r = subprocess.run([PROGRAM, "serve", "--host", "0.0.0.0"], capture_output=True, text=True)
    ok(r.returncode == 2 and "key" in r.stderr, "an address that others can reach needs a key", r.stderr)


def test_curl(s):
    name = "curl: a stream"
    if not shutil.which("curl"):
        return skip(name, "curl is not installed")
    r = subprocess.run(["curl", "-sN", "http://localhost:%d/v1/chat/completions" % s.port, "-H", "Content-Type: application/json", "-d",
                        json.dumps({"messages": QUESTION, "temperature": 0, "stream": True})], capture_output=True, text=True)
    return ok(r.stdout.rstrip().endswith("data: [DONE]") and '"finish_reason":"stop"' in r.stdout, name, r.stdout[-300:] + r.stderr)


def test_openai(s):
    names = ["openai package: " + n for n in ("chat", "stream", "errors have their classes", "100 streams at once", "log-probabilities", "completions")]
    try:
        import openai
    except ImportError:
        for n in names:
            skip(n, "the openai package is not installed")
        return
    c = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % s.port, api_key="none", max_retries=0, timeout=300)
    model = c.models.list().data[0].id
    r = c.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    ok(r.choices[0].message.content == "The capital of France is Paris." and r.usage.total_tokens > 0, names[0], r)

    def stream(_=None):
        with c.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}) as it:
            chunks = list(it)
        return "".join(k.choices[0].delta.content or "" for k in chunks if k.choices), chunks[-1].usage
    text, usage = stream()
    ok(text == "The capital of France is Paris." and usage.completion_tokens == r.usage.completion_tokens, names[1], (text, usage))
    raised = []
    for make in (lambda: c.chat.completions.create(model=model, messages=[]), lambda: c.chat.completions.create(model="other", messages=QUESTION)):
        try:
            make()
        except openai.APIStatusError as e:
            raised.append(type(e).__name__)
    ok(raised == ["BadRequestError", "NotFoundError"], names[2], raised)
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        texts = [t for t, _ in pool.map(stream, range(100))]
    ok(texts == [text] * 100, names[3], set(texts))
    r = c.chat.completions.create(model=model, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2).choices[0]
    ok("".join(t.token for t in r.logprobs.content) == text and all(t.top_logprobs[0].logprob == t.logprob <= 0 for t in r.logprobs.content), names[4], r)
    r = c.completions.create(model=model, prompt="The capital of Japan is", temperature=0, max_tokens=4, logprobs=1, echo=False, n=2, seed=1)
    ok(len(r.choices) == 2 and r.choices[0].logprobs.tokens[0] == " T" and r.choices[0].text == r.choices[1].text, names[5], r)


def test_llm(s, scratch):
    """The program llm (PyPI), told of this server by its own configuration."""
    names = ["llm: " + n for n in ("a chat", "a stream", "a conversation that goes on", "an error is told", "8 at once")]
    program = shutil.which("llm")
    if not program:
        for n in names:
            skip(n, "llm is not installed")
        return
    folder = os.path.join(scratch, "llm")
    os.makedirs(folder, exist_ok=True)
    model = json.loads(s.request("GET", "/v1/models")[1])["data"][0]["id"]
    with open(os.path.join(folder, "extra-openai-models.yaml"), "w") as f:
        for name, called in (("here", model), ("elsewhere", "no-such-model")):
            f.write("- model_id: %s\n  model_name: %s\n  api_base: http://127.0.0.1:%d/v1\n" % (name, called, s.port))

    def ask(*args):
        r = subprocess.run([program, *args], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                           env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"})
        return r.returncode, r.stdout.strip(), r.stderr.strip()
    question = ("-m", "here", "-o", "temperature", "0", QUESTION[0]["content"])
    want = "The capital of France is Paris."
    got = ask("--no-stream", *question)
    ok(got[0] == 0 and got[1] == want, names[0], got)
    got = ask(*question)
    ok(got[0] == 0 and got[1] == want, names[1], got)
    got = ask("-c", "-o", "temperature", "0", "And what is the capital of Japan?")
    ok(got[0] == 0 and "Tokyo" in got[1], names[2], got)
    got = ask("-m", "elsewhere", "hello")
    ok(got[0] != 0 and "no such model" in got[2], names[3], got)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: ask("-n", *question), range(8)))  # its log takes one writer
    ok(all(g[:2] == (0, want) for g in got), names[4], got)


def test_parallel(s):
    """Different questions at once, each with the answer it has alone."""
    bodies = [{"messages": [{"role": "user", "content": "What is %d + %d?" % (i, 3 * i % 50)}], "max_tokens": 24, "ignore_eos": True} for i in range(50)]
    alone = [text_of(read_stream(s, **b), "reasoning_content") for b in bodies[:10]]
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        got = list(pool.map(lambda b: text_of(read_stream(s, **b), "reasoning_content"), bodies * 2))
    ok(got[:50] == got[50:] and got[:10] == alone, "100 streams at once have the text that they have alone", (got[:2], alone[:2]))
    ok(s.idle() == [0, 0, 0], "then no cache block is held", s.idle(1))


def test_metrics(s):
    status, data = s.request("GET", "/metrics")
    text = data.decode()
    want = ["vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total", "vllm:prefix_cache_hits_total",
            "llamacpp:predicted_tokens_seconds", "llamacpp:n_decode_total", "rankscope_allreduce_seconds", "rankscope_allreduce_skew_seconds",
            "rankscope_graph_coverage_ratio", "rankscope_nonfinite_total", "rankscope_verdict_total"]
    ok(status == 200 and all("\n" + n in text for n in want), "/metrics has the names that dashboards ask for", [n for n in want if "\n" + n not in text])
    odd = [line for line in text.splitlines() if line.endswith("NaN") or not re.match(r"# (HELP|TYPE) \S+ .|[a-z0-9_:]+(\{[^}]*\})? [0-9.e+-]+$", line)]
    ok(not odd, "each line has a number; what is not known is absent", odd)
    done = s.metric('vllm:request_success_total')
    ok(done is not None and s.metric("vllm:generation_tokens_total") > 100 and s.metric("vllm:time_to_first_token_seconds_count") > 10, "and they count", done)
    with open(os.path.join(os.environ.get("abs_srcdir", "."), "docs", "grafana.json")) as f:
        asked = {n for p in json.load(f)["panels"] for t in p["targets"] for n in re.findall(r"(?:vllm:|rankscope_)\w+", t["expr"])}
    missing = [n for n in asked if n != "rankscope_patch_active" and not re.search(r"^%s[ {]" % n, text, re.M)]
    ok(len(asked) > 15 and not missing, "docs/grafana.json asks for nothing that is not there", missing)
    if not shutil.which("promtool"):
        return skip("promtool reads it", "promtool is not installed")
    r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    others = [line for line in r.stderr.splitlines() if not re.match(r"(vllm|llamacpp):\S+ metric names should not contain ':'$", line)]
    return ok(not others, "promtool reads it, and only minds the colons that others put into their names", others)


# ---- clients that do not -----------------------------------------------------------------------------------------------------------------------


def test_ranks():
    """What two ranks tell of their all-reduces, while one of them is late on purpose."""
    s = Server("--ranks", "2", "--patch", "delay=1:5000")  # more than a machine with other work takes a core away for, on average
    s.chat(max_tokens=20)
    text = s.request("GET", "/metrics")[1].decode()

    def value(name, rank, labels=""):
        m = re.search(r'^rankscope_allreduce_%s\{rank="%d"[^}]*%s\} (\S+)$' % (name, rank, labels), text, re.M)
        return float(m.group(1)) if m else None
    late, early = value("skew_seconds", 1), value("skew_seconds", 0)
    ok(early == 0 and late is not None and 0.003 < late < 0.1, "a rank that is late by 5 ms shows as skew", (early, late))
    waits = [value("seconds", r, 'part="wait",quantile="0.5"') for r in (0, 1)]
    ok(None not in waits and waits[0] > 0.003 > waits[1], "and in the waits of the other", waits)
    sums = [value("seconds_" + k, 0, 'part="%s"' % p) for p in ("all", "wait", "transfer") for k in ("sum", "count")]
    ok(None not in sums and abs(sums[0] - sums[2] - sums[4]) < 1e-6 + sums[0] / 1e6 and sums[1] == sums[3] == sums[5] > 0,
       "waiting and moving data add up to the whole", sums)
    ok(s.metric("rankscope_graph_coverage_ratio") == 1, "all ops run from a graph")
    ok(s.stop() == 0, "the server ends in order")


def free_port():
    with socket.socket() as k:
        k.bind(("127.0.0.1", 0))
        return k.getsockname()[1]


def query(port, expr):
    """An instant query of a Prometheus; its result list, or an error text."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        c.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": expr}))
        r = json.loads(c.getresponse().read())
        return r["data"]["result"] if r["status"] == "success" else r["error"]
    except (OSError, ValueError, KeyError) as e:
        return repr(e)
    finally:
        c.close()


def test_prometheus(s, scratch):
    """A Prometheus that scrapes the server, asked everything that the dashboard asks."""
    names = ["Prometheus scrapes a running server", "it answers every question of docs/grafana.json", "its counters are the server's"]
    program = shutil.which("prometheus")
    if not program:
        for n in names:
            skip(n, "prometheus is not installed")
        return
    folder, port = os.path.join(scratch, "prometheus"), free_port()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.yml"), "w") as f:
        f.write("global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: rankscope\n  static_configs:\n  - targets: ['127.0.0.1:%d']\n" % s.port)
    p = subprocess.Popen([program, "--config.file=" + os.path.join(folder, "config.yml"), "--storage.tsdb.path=" + os.path.join(folder, "data"),
                          "--web.listen-address=127.0.0.1:%d" % port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        end = time.time() + 90
        up = []
        while time.time() < end:  # three scrapes, so that rates can be taken
            s.chat(max_tokens=4)
            up = query(port, "count_over_time(up{job='rankscope'}[1m]) > 3 and up{job='rankscope'} == 1")
            if isinstance(up, list) and up:
                break
            time.sleep(0.5)
        ok(isinstance(up, list) and len(up) == 1, names[0], up)
        with open(os.path.join(os.environ.get("abs_srcdir", "."), "docs", "grafana.json")) as f:
            asked = [t["expr"] for panel in json.load(f)["panels"] for t in panel["targets"]]
        got = {e: query(port, re.sub(r"\$__rate_interval|\$__interval|\$__range", "1m", e)) for e in asked}
        empty = [e for e, r in got.items() if not isinstance(r, list) or (not r and "patch_active" not in e)]
        ok(len(got) > 10 and not empty, names[1], [(e, got[e]) for e in empty])
        time.sleep(2)
        seen = query(port, "vllm:generation_tokens_total")
        ok(isinstance(seen, list) and float(seen[0]["value"][1]) == s.metric("vllm:generation_tokens_total"), names[2], seen)
    finally:
        p.terminate()
        p.wait()


class Console:
    """A console that reads commands from a pipe, on an engine in a process of its own."""

    def __init__(self):
        r, w = os.pipe()
        name = "serve-%d" % os.getpid()
        self.engine = subprocess.Popen([PROGRAM, "engine", "--name", name, "--ready-fd", str(w)], pass_fds=[w], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(w)
        os.read(r, 1)
        os.close(r)
        self.p = subprocess.Popen([PROGRAM, "attach", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  bufsize=1)
        self.lines, self.at = [], 0
        threading.Thread(target=lambda: self.lines.extend(iter(self.p.stdout.readline, "")), daemon=True).start()

    def say(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()

    def wait(self, pattern, seconds=120):
        """The first line from here on that matches; None when it does not come."""
        end = time.time() + seconds
        while time.time() < end:
            while self.at < len(self.lines):
                self.at += 1
                m = re.search(pattern, self.lines[self.at - 1])
                if m:
                    return m
            time.sleep(0.02)
        return None


class Beside(Server):
    """The server that a console runs."""

    def __init__(self, port):  # noqa: D107  (no process of its own)
        self.key, self.port = None, port


def test_console(scratch):
    c = Console()
    first = os.path.join(os.environ.get("RANKSCOPE_DATADIR", "."), "models", "tiny-glm5-q4.gguf")
    c.say("/load " + first)
    c.say("/serve --port 0")
    m = c.wait(r"listening on http://127\.0\.0\.1:(\d+)")
    ok(m is not None, "/serve in the console says where it listens", c.lines)
    if m is None:
        c.p.kill()
        c.engine.kill()
        return
    s = Beside(int(m.group(1)))
    france = {"messages": QUESTION, "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}
    ok(s.post("/v1/chat/completions", france)[1]["choices"][0]["message"]["content"] == "The capital of France is Paris.", "it answers")
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        c.say("What is the capital of Japan?")
        got = list(pool.map(lambda _: s.post("/v1/chat/completions", france)[1]["choices"][0]["message"]["content"], range(20)))
    ok(c.wait("Tokyo") is not None and set(got) == {"The capital of France is Paris."}, "the console answers its operator meanwhile", (set(got), c.lines[-3:]))
    c.say("/patch set slot_order=file")
    c.wait("slot_order")
    odd = s.post("/v1/chat/completions", {**france, "max_tokens": 30})[1]["choices"][0]["message"]["content"]
    c.say("/patch reset")
    c.wait("slot_order|reset|default")
    ok("Paris" not in odd and "Paris" in s.post("/v1/chat/completions", france)[1]["choices"][0]["message"]["content"],
       "clients see what the operator changes", odd)
    c.say("/break blk.2.attn.mla")
    c.wait("break")
    k = open_stream(s, france)
    stopped = c.wait("stopped ")
    status, health = s.request("GET", "/health")
    ok(stopped is not None and status == 200 and "the engine is stopped (break 1) at blk.2.attn.mla" in json.loads(health).get("waiting", ""),
       "a breakpoint: /health answers and says why requests wait", health)
    late = open_stream(s, france)
    ok(s.metric("vllm:num_requests_running") == 1, "so does /metrics", s.metric("vllm:num_requests_running"))
    c.say("/break del")
    c.say("/continue")
    texts = []
    for x in (k, late):
        got = b""
        while b"[DONE]" not in got:
            more = x.recv(65536)
            if not more:
                break
            got += more
        events = [json.loads(e[6:]) for e in got.decode().replace("\r\n", "\n").split("\n") if e.startswith("data: {")]
        texts.append((text_of(events), b": the engine is stopped" in got))
        x.close()
    ok(texts[0] == ("The capital of France is Paris.", True), "the stream that waited is told so and then goes on", texts)
    ok(texts[1][0] == "The capital of France is Paris.", "so does one that came meanwhile", texts)
    ok("waiting" not in json.loads(s.request("GET", "/health")[1]), "then nothing waits any more")
    other = os.path.join(scratch, "other.gguf")
    shutil.copy(first, other)
    c.say("/load " + other)
    c.wait("model: .*other")
    end = time.time() + 60
    while s.request("GET", "/health")[0] != 200 and time.time() < end:
        time.sleep(0.05)
    name = json.loads(s.request("GET", "/v1/models")[1])["data"][0]["id"]
    while name != "other.gguf" and time.time() < end:
        time.sleep(0.05)
        name = json.loads(s.request("GET", "/v1/models")[1])["data"][0]["id"]
    ok(name == "other.gguf" and "Paris" in s.post("/v1/chat/completions", {**france, "model": name})[1]["choices"][0]["message"]["content"],
       "another model is served under its name", name)
    c.say("/serve off")
    c.wait("takes nothing more")
    end = time.time() + 30
    gone = False
    while not gone and time.time() < end:
        try:
            s.request("GET", "/health", timeout=5)
            time.sleep(0.05)
        except OSError:
            gone = True
    ok(gone, "/serve off ends it")
    c.say("/serve --port 0")
    m = c.wait(r"listening on http://127\.0\.0\.1:(\d+)")
    k = open_stream(Beside(int(m.group(1))), {"messages": QUESTION, "ignore_eos": True, "max_tokens": 1500}) if m else None
    ok(k is not None and k.recv(10) != b"", "and it can begin again")
    c.p.stdin.close()
    ok(c.p.wait(60) == 0, "the console's end is its end", c.lines[-3:])
    c.engine.send_signal(signal.SIGTERM)
    ok(c.engine.wait(60) == 0, "its engine goes on until it is told to end")


def fill_cache(s):
    """Use every block of the cache: it takes memory when it is written to, and what grows afterwards is something else."""
    for i in range(200):
        free = [s.metric("rankscope_cache_blocks" + n) for n in ("", "_held", "_idle")]
        if free[0] - free[1] - free[2] <= 1:  # one that was not full at the end of an answer
            return
        s.chat(max_tokens=200, ignore_eos=True, messages=[{"role": "user", "content": "What is %d + %d?" % (i, i)}])
    raise AssertionError("the cache does not fill: %s blocks, held, idle" % free)


def test_soak(s, minutes):
    """A little of everything, a few requests a second, for so long; memory minute by minute, of a server whose cache is small and full."""
    rng = random.Random(2)
    fill_cache(s)
    begin, rss, n = time.time(), [s.rss()], 0
    slow = []
    while time.time() - begin < minutes * 60:
        n += 1
        s.chat(max_tokens=20, messages=[{"role": "user", "content": "What is %d + %d?" % (rng.randrange(99), rng.randrange(99))}])
        open_stream(s, {"messages": QUESTION, "ignore_eos": True, "max_tokens": 200}).close()
        s.request("POST", "/v1/chat/completions", mutate(rng))
        s.request("GET", "/metrics")
        if n % 5 == 0:
            slow.append(open_stream(s, {"messages": QUESTION, "max_tokens": 30, "logprobs": True}, 4096))
        if len(slow) > 8:
            slow.pop(0).close()
        if time.time() - begin >= len(rss) * 60:
            rss.append(s.rss())
            print("# minute %d: %d MB resident, %d rounds" % (len(rss) - 1, rss[-1], n), flush=True)
        time.sleep(0.4)
    for k in slow:
        k.close()
    left = s.idle()
    rss.append(s.rss())
    ok(left == [0, 0, 0], "%g minutes of a little of everything leave no sequence and no block" % minutes, left)
    settled = rss[min(2, len(rss) - 1)]  # what the first requests bring in has come by then
    ok(rss[-1] <= settled + 8, "and memory is where it was: MB by the minute %s" % rss, rss)


def test_vanish(s):
    n = 500 if LONG else 40
    body = {"messages": QUESTION, "ignore_eos": True, "max_tokens": 400}

    def leave(i):
        c = open_stream(s, body)
        if i % 4 != 0:
            c.recv(200 + 37 * i)
        if i % 3 == 0:  # with a reset rather than an end
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        c.close()
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(leave, range(n)))
    ok(s.idle() == [0, 0, 0], "%d clients that vanish mid-stream leave no sequence and no block" % n, s.idle(1))
    aborted = re.search(r'finished_reason="abort"\} (\d+)', s.request("GET", "/metrics")[1].decode())
    ok(int(aborted.group(1)) > n // 2, "their sequences were stopped, not finished", aborted.group(0))
    c = s.connect()
    c.request("POST", "/v1/chat/completions", json.dumps({**body, "max_tokens": 1900}))
    time.sleep(0.2)
    c.close()
    ok(s.idle() == [0, 0, 0], "so is a whole answer that nobody waits for", s.idle(1))


def test_slow(s):
    n = 200 if LONG else 12
    sockets = [open_stream(s, {"messages": QUESTION, "ignore_eos": True, "max_tokens": 60}, 4096) for _ in range(n)]
    time.sleep(0.5)
    ok(s.chat(max_tokens=4)[0] == 200, "%d clients that do not read do not hold others up" % n)
    left = s.idle()
    ok(left == [0, 0, 0], "their sequences end all the same", left)
    got = b""
    while b"[DONE]" not in got:
        more = sockets[0].recv(65536)
        if not more:
            break
        got += more
    ok(b"[DONE]" in got, "and one that reads late gets all of it", got[-200:])
    for c in sockets:
        c.close()


def mutate(rng):
    """A body that is almost right, as bytes."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0, "stop": ["x"], "n": 1, "stream": False})
    kind = rng.randrange(6)
    data = bytearray(body.encode())
    if kind == 0:
        for _ in range(rng.randrange(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data)):]
    elif kind == 2:
        key = rng.choice(["messages", "max_tokens", "temperature", "stop", "n", "stream", "model", "logit_bias", "stream_options", "seed", "top_k"])
        value = rng.choice([None, True, -1, 1e300, 10**30, "", "\u0000", [], [[]], {}, {"a": {}}, [None], "x" * 3000, [{"role": "user"}]])
        return json.dumps({**json.loads(body), key: value}).encode()
    elif kind == 3:
        data = bytearray(b"[" * rng.randrange(1, 5000))
    elif kind == 4:
        data[rng.randrange(len(data)):] = bytes(rng.randrange(256) for _ in range(rng.randrange(300)))
    else:
        data = bytearray(json.dumps({"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}).encode().replace(b"?", b"\xff\xc0\x80\xed\xa0\x80"))
    return bytes(data)


def test_malformed(s):
    n = 10000 if LONG else 400
    rng = random.Random(1)
    odd = []
    paths = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
    c = s.connect()
    for i in range(n):
        body = mutate(rng)
        c.request("POST", paths[i % 4], body)
        r = c.getresponse()
        data = r.read()
        try:
            good = r.status == 200 or (r.status in (400, 404) and json.loads(data)["error"]["message"])
        except (ValueError, KeyError):
            good = False
        if not good:
            odd.append((body[:200], r.status, data[:200]))
    c.close()
    ok(not odd, "%d malformed bodies get an answer or a reason" % n, odd[:3])
    for raw in (b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 100000 + b"\r\n\r\n",
                b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        k = socket.create_connection(("127.0.0.1", s.port), 60)
        try:
            k.sendall(raw)
            k.shutdown(socket.SHUT_WR)
            k.recv(65536)
        except OSError:
            pass
        k.close()
    ok(s.request("GET", "/health")[0] == 200 and s.idle() == [0, 0, 0], "requests that are no HTTP do no harm", s.idle(1))


def test_limits():
    s = Server("--max-queue", "3", "--read-timeout", "1", "--idle-timeout", "2", "--ctx", "2048")
    sockets = [open_stream(s, {"messages": QUESTION, "ignore_eos": True, "max_tokens": 1500}) for _ in range(3)]
    for c in sockets:
        c.recv(100)
    status, got = s.chat()
    ok(status == 429 and got["error"]["type"] == "rate_limit_error", "a full queue: 429", got)
    for c in sockets:
        c.close()
    end = time.time() + 60
    while s.chat(max_tokens=1)[0] == 429 and time.time() < end:
        time.sleep(0.1)
    ok(s.chat(max_tokens=1)[0] == 200, "once it has room again, requests are taken again")
    c = socket.create_connection(("127.0.0.1", s.port), 30)
    c.settimeout(30)
    begin = time.time()
    closed = False
    try:
        while time.time() - begin < 60 and not closed:  # a byte now and then: never silent, never done
            c.sendall(b"G")
            c.settimeout(0.3)
            try:
                closed = c.recv(100) == b""
            except TimeoutError:
                pass
    except OSError:
        closed = True
    ok(closed, "a request that never ends is cut off", time.time() - begin)
    ok(s.stop() == 0, "and the server ends in order")


def test_cache():
    """A cache that holds a few of the sequences at a time."""
    s = Server("--ctx", "512")
    n = 64 if LONG else 16
    bodies = [{"messages": [{"role": "user", "content": "What is %d + %d?" % (i, i + 2)}], "max_tokens": 90, "ignore_eos": True} for i in range(n)]
    alone = [text_of(read_stream(s, **b), "reasoning_content") for b in bodies[:4]]
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        got = list(pool.map(lambda b: read_stream(s, **b), bodies))
    reasons = [[c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]] for events in got]
    ok(reasons == [["length"]] * n and [text_of(e, "reasoning_content") for e in got[:4]] == alone, "a full cache: %d sequences that do not fit all end right" % n,
       reasons)
    ok(s.metric("vllm:num_preemptions_total") > 0, "some had to give their blocks back (%d times)" % s.metric("vllm:num_preemptions_total"))
    ok(s.idle() == [0, 0, 0], "and none is held in the end", s.idle(1))
    ok(s.stop() == 0, "the server ends in order")


def test_drain():
    s = Server("--drain", "600")  # however slow the machine
    results = []

    def ask():
        try:
            results.append(read_stream(s, ignore_eos=True, max_tokens=60)[-1]["choices"][0]["finish_reason"])
        except Exception as e:  # noqa: BLE001  (anything but a whole answer counts)
            results.append(repr(e))
    threads = [threading.Thread(target=ask) for _ in range(20)]
    for t in threads:
        t.start()
    end = time.time() + 30
    while s.metric("vllm:num_requests_running") < 20 and time.time() < end:
        time.sleep(0.02)
    s.p.send_signal(signal.SIGTERM)
    end, health = time.time() + 60, 200
    try:
        while health == 200 and time.time() < end:  # until the signal has come
            health = s.request("GET", "/health")[0]
        late = health, s.chat()[0]
    except OSError:
        late = None
    for t in threads:
        t.join()
    code = s.p.wait(60)
    ok(results == ["length"] * 20, "SIGTERM under load: what runs is finished", results)
    ok(late in ((503, 503), None), "what comes after it gets 503", late)
    ok(code == 0, "and the exit status is 0", code)


def some(names, scratch):
    """Only these tests, each on a server of its own unless it starts one."""
    for name in names:
        test = globals()["test_" + name]
        args = test.__code__.co_varnames[:test.__code__.co_argcount]
        s = Server(*(["--ctx", "4096"] if name == "soak" else [])) if "s" in args else None
        test(*[{"s": s, "scratch": scratch, "minutes": float(os.environ.get("RANKSCOPE_SOAK", "1"))}[a] for a in args])
        if s:
            ok(s.stop() == 0, name + ": SIGTERM ends it with status 0")
    print("1..%d" % count)


def main():
    scratch = os.environ.get("TEST_SCRATCH", "/tmp")
    if len(sys.argv) > 2:
        some(sys.argv[2:], scratch)
        return
    s = Server()
    ok(re.match(r"listening on http://127\.0\.0\.1:\d+$", s.said.strip()) is not None, "it says where it listens: this machine only", s.said)
    for test in (test_answers, test_sampling, test_logprobs, test_echo, test_text_stays_text, test_errors, test_curl, test_openai, test_parallel, test_metrics, test_vanish):
        test(s)
    test_llm(s, scratch)
    test_prometheus(s, scratch)
    ok(s.stop() == 0, "SIGTERM ends it with status 0")
    s = Server("--ctx", "4096")
    fill_cache(s)
    before = s.rss()
    for test in (test_slow, test_malformed, test_vanish):
        test(s)
    if sanitized():
        skip("memory stays where it was", "a sanitizer keeps some of its own (%d MB, then %d)" % (before, s.rss()))
    else:
        ok(s.rss() < before + 64, "memory stays where it was (%d MB, then %d)" % (before, s.rss()))
    minutes = float(os.environ.get("RANKSCOPE_SOAK", "2" if LONG else "0"))
    if minutes > 0:
        test_soak(s, minutes)
    ok(s.stop() == 0, "with a small cache, too")
    test_console(scratch)
    test_key(scratch)
    test_limits()
    test_cache()
    test_ranks()
    test_drain()
    print("1..%d" % count)


main()
