"""rankscope and llama.cpp measured in turns; called by scripts/bench-peer.

Each round runs both programs once, each in a process of its own, after a warm-up that does not count. llama.cpp is used as its own benchmark
does: random tokens, no sampling, the clock read when the results are there. rankscope is measured through `rankscope bench`, with everything that
an answer costs: scheduling, sampling, events."""
import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time


def random_ids(n, vocab, state=[1]):
    ids = []
    for _ in range(n):
        state[0] = (state[0] * 1664525 + 1013904223) % 2**32
        ids.append((state[0] >> 8) % vocab)
    return ids


class Peer:
    def __init__(self, args):
        import llama_cpp as lib
        self.lib = lib
        silent = lib.llama_log_callback(lambda level, text, data: None)
        self.silent = silent  # must live as long as the library may call it
        lib.llama_log_set(silent, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
        if not self.model:
            sys.exit('bench-peer: llama.cpp cannot read the model')
        params = lib.llama_context_default_params()
        params.n_ctx = args.prompt + args.depth + args.gen + 64
        params.n_batch = params.n_ubatch = max(args.prompt, 512)
        params.n_threads = params.n_threads_batch = args.threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def decode(self, ids):
        tokens = (self.lib.llama_token * len(ids))(*ids)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(ids))) != 0:
            sys.exit('bench-peer: llama.cpp fails to decode')
        self.lib.llama_synchronize(self.context)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def prompt(self, n):
        self.clear()
        ids = random_ids(n, self.vocab)
        start = time.perf_counter()
        self.decode(ids)
        return n / (time.perf_counter() - start)

    def generate(self, depth, n):
        self.clear()
        self.decode(random_ids(depth, self.vocab))
        ids = random_ids(n, self.vocab)
        start = time.perf_counter()
        for i in ids:
            self.decode([i])
        return n / (time.perf_counter() - start)


def run_peer(args):
    peer = Peer(args)
    result = {'pp': [], 'tg': []}
    for i in range(args.repeats + 1):
        pp, tg = peer.prompt(args.prompt), peer.generate(args.depth, args.gen)
        if i > 0:
            result['pp'].append(pp)
            result['tg'].append(tg)
    print(json.dumps(result), flush=True)
    os._exit(0)


def call(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f'bench-peer: {command[0]} failed')
    return json.loads(done.stdout)


def processor():
    try:
        with open('/proc/cpuinfo') as f:
            return next(line.split(':')[1].strip() for line in f if line.startswith('model name'))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--program', required=True)
    p.add_argument('-m', '--model', required=True)
    p.add_argument('--prompt', type=int, default=512)
    p.add_argument('--gen', type=int, default=128)
    p.add_argument('--depth', type=int, default=1)
    p.add_argument('--rounds', type=int, default=5)
    p.add_argument('--repeats', type=int, default=3, help='of each test in a round')
    p.add_argument('--threads', type=int, default=2)
    p.add_argument('--ranks', type=int, default=1)
    p.add_argument('--json', action='store_true')
    p.add_argument('--peer', action='store_true', help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peer:
        run_peer(args)
    sizes = [f'--{k}={getattr(args, k)}' for k in ('prompt', 'gen', 'depth', 'repeats')]
    ours = [args.program, 'bench', '--json', '-m', args.model, '--ranks', str(args.ranks), '--workers', str(args.threads), *sizes]
    theirs = [sys.executable, __file__, '--peer', '--program', args.program, '-m', args.model, f'--threads={args.threads}', *sizes]
    samples = {}
    for _ in range(args.rounds):
        mine = call(ours)
        for mode in ('graph', 'eager'):
            for test, value in mine[mode].items():
                samples.setdefault((f'rankscope {mode}', test), []).extend(value['samples'])
        for test, values in call(theirs).items():
            samples.setdefault(('llama.cpp', test), []).extend(values)
    best = {test: statistics.median(samples['rankscope graph', test]) / statistics.median(samples['llama.cpp', test]) for test in ('pp', 'tg')}
    if args.json:
        print(json.dumps({'processor': processor(), 'threads': args.threads, 'ranks': args.ranks, 'ratio': best,
                          'samples': {f'{who} {test}': v for (who, test), v in samples.items()}}))
        return
    print(f'{processor()}, {args.threads} threads, {args.ranks} ranks, {time.strftime("%Y-%m-%d")}; tokens per second')
    print(f'{"":18}{"test":14}{"median":>9}{"mean":>9}{"stddev":>9}{"min":>9}{"max":>9}{"n":>5}')
    for (who, test), v in samples.items():
        name = f'pp{args.prompt}' if test == 'pp' else f'tg{args.gen}' + (f' @ {args.depth}' if args.depth > 1 else '')
        print(f'{who:18}{name:14}{statistics.median(v):9.0f}{statistics.mean(v):9.0f}{statistics.stdev(v):9.0f}{min(v):9.0f}{max(v):9.0f}{len(v):5}')
    print(f'rankscope in graph mode over llama.cpp, medians: prompt {best["pp"]:.2f}, generation {best["tg"]:.2f}')


main()
