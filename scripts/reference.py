#!/usr/bin/env python3
"""A readable forward pass in float64 for glm-dsa, deepseek2 and deepseek32 GGUF files: the oracle to debug the engine against.

    reference.py MODEL.gguf IDS [--swap] [--dump FILE.npz]
    reference.py MODEL.gguf --check GOLDEN.json NAME

IDS are token ids joined by commas. --dump writes every named intermediate, keyed "blk.N.NAME". --check compares with recorded results
and exits 1 if they differ. --swap joins the fused q_a/kv_a projection in file order instead of slot order: a wrong model that still runs,
kept because its output is what a certain class of loader bug looks like.

Nothing is cached and nothing is batched: every number is computed anew from all earlier rows, so nothing can be stale. Rows are positions.
Needs numpy and gguf.
"""
import argparse
import json
import math
import sys

import numpy as np
from gguf import GGUFReader, dequantize

TOLERANCE = 1e-4  # relative L2 against results that were computed in float32
INDEXER_NORM_EPS = 1e-6  # the indexer's LayerNorm; every RMSNorm takes its epsilon from the file
YARN_BETA_FAST, YARN_BETA_SLOW = 32, 1
GATE_SOFTMAX, GATE_SIGMOID = 1, 2  # values of the key expert_gating_func


def load(path):
    """Metadata as a dict, weights as float64 arrays in row-major order (outermost dimension first)."""
    reader = GGUFReader(path)
    meta, weights = {}, {}
    for key, field in reader.fields.items():
        if not field.types:
            continue
        kind = field.types[0].name
        if kind == 'ARRAY':
            if field.types[1].name == 'STRING':
                continue  # the vocabulary; nothing here needs text
            meta[key] = [field.parts[i].tolist()[0] for i in field.data]
        elif kind == 'STRING':
            meta[key] = bytes(field.parts[field.data[0]]).decode()
        else:
            meta[key] = field.parts[field.data[0]].tolist()[0]
    for tensor in reader.tensors:
        shape = [int(n) for n in tensor.shape[::-1]]
        weights[tensor.name] = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float64).reshape(shape)
    return meta, weights


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def largest(scores, n):
    """Indices of the n largest scores of each row, in falling order. Ties: the lowest index wins."""
    return np.argsort(-scores, -1, kind='stable')[..., :n]


def swiglu(x, gate, up, down):
    z = x @ gate.T
    return (z * sigmoid(z) * (x @ up.T)) @ down.T


class Hparams:
    """What the forward pass needs from the metadata, under plain names."""

    def __init__(self, meta):
        self.arch = meta['general.architecture']

        def get(key, default=None):
            value = meta.get(f'{self.arch}.{key}', default)
            if value is None:
                raise KeyError(f'{self.arch}.{key} is missing')
            return value

        self.layers = get('block_count') - get('nextn_predict_layers', 0)
        self.dense_layers = get('leading_dense_block_count', 0)
        self.eps = get('attention.layer_norm_rms_epsilon')

        # Attention: a head is nope + rope dimensions for query and key, value_dim for the value.
        self.heads = get('attention.head_count')
        self.kv_lora = get('attention.kv_lora_rank')
        self.rope_dim = get('rope.dimension_count')
        self.head_dim = get('attention.key_length_mla', 0) or get('attention.key_length')
        self.nope_dim = self.head_dim - self.rope_dim
        self.value_dim = get('attention.value_length_mla', 0) or get('attention.value_length')

        # Experts.
        self.experts_used = get('expert_used_count', 0)
        self.expert_scale = get('expert_weights_scale', 1.0) or 1.0
        self.expert_norm = bool(get('expert_weights_norm', False))
        self.gate = get('expert_gating_func', 0) or (GATE_SIGMOID if self.arch == 'glm-dsa' else GATE_SOFTMAX)
        self.groups = get('expert_group_count', 1) or 1
        self.groups_used = get('expert_group_used_count', 1) or 1

        # Sparse attention. A layer without an indexer of its own shares the selection of the last one that has it.
        self.index_topk = get('attention.indexer.top_k', 0)
        self.index_heads = get('attention.indexer.head_count', 0)
        self.has_indexer = [bool(t) for t in get('attention.indexer.types', [])] or [True] * self.layers

        self.frequencies, magnitude = self._rope(get)
        self.attention_scale = magnitude ** 2 / math.sqrt(self.head_dim)

    def _rope(self, get):
        """RoPE frequencies [rope_dim / 2] and the YaRN magnitude (1 without scaling)."""
        base = get('rope.freq_base', 10000.0)
        frequencies = base ** -(np.arange(0, self.rope_dim, 2) / self.rope_dim)
        if get('rope.scaling.type', 'none') != 'yarn':
            return frequencies, 1.0
        factor = get('rope.scaling.factor')
        trained = get('rope.scaling.original_context_length')

        def dimension(rotations):
            """The dimension that turns this many times within the trained context."""
            return self.rope_dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

        low = max(0, math.floor(dimension(YARN_BETA_FAST)))
        high = min(self.rope_dim - 1, math.ceil(dimension(YARN_BETA_SLOW)))
        ramp = np.clip((np.arange(self.rope_dim // 2) - low) / max(1e-3, high - low), 0, 1)
        magnitude = 1 + get('rope.scaling.yarn_log_multiplier', 0.0) * math.log(factor)
        return frequencies / factor * ramp + frequencies * (1 - ramp), magnitude


class Model:
    def __init__(self, path):
        meta, self.weights = load(path)
        self.hp = Hparams(meta)

    def rms_norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.hp.eps) * weight

    def rotate(self, x, interleaved=True):
        """RoPE over x [rows, ..., rope_dim]. Pairs are neighbours when interleaved, else a dimension and the one half the width on."""
        angle = np.arange(len(x))[:, None] * self.hp.frequencies
        angle = angle.reshape(len(x), *[1] * (x.ndim - 2), -1)
        cos, sin = np.cos(angle), np.sin(angle)
        half = self.hp.rope_dim // 2
        first = np.s_[..., 0::2] if interleaved else np.s_[..., :half]
        second = np.s_[..., 1::2] if interleaved else np.s_[..., half:]
        y = np.empty_like(x)
        y[first] = x[first] * cos - x[second] * sin
        y[second] = x[first] * sin + x[second] * cos
        return y

    def select(self, blk, x, q_latent, put):
        """The sparse-attention indexer: bool [rows, rows], which rows each row may attend to."""
        hp, w = self.hp, self.weights
        rows, rope = len(x), hp.rope_dim
        interleaved = hp.arch == 'glm-dsa'
        k = x @ w[blk + 'indexer.attn_k.weight'].T
        k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + INDEXER_NORM_EPS)
        k = k * w[blk + 'indexer.k_norm.weight'] + w[blk + 'indexer.k_norm.bias']
        dim = k.shape[-1]
        q = (q_latent @ w[blk + 'indexer.attn_q_b.weight'].T).reshape(rows, hp.index_heads, dim)
        q[..., :rope] = self.rotate(q[..., :rope], interleaved)
        k[..., :rope] = self.rotate(k[..., :rope], interleaved)
        per_head = np.maximum(np.einsum('thd,sd->ths', q, k), 0)
        head_weight = x @ w[blk + 'indexer.proj.weight'].T
        scores = np.einsum('th,ths->ts', head_weight, per_head) / math.sqrt(hp.index_heads * dim)
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
        put('index_scores', scores)
        keep = np.zeros((rows, rows), bool)
        np.put_along_axis(keep, largest(scores, hp.index_topk), True, -1)
        return keep & np.tri(rows, dtype=bool)

    def query_and_latent(self, blk, x, swap):
        """Query rows, the normed query latent (None without q-LoRA), and the raw key-value latent with its shared RoPE key."""
        w = self.weights
        kv_a = x @ w[blk + 'attn_kv_a_mqa.weight'].T
        if blk + 'attn_q_a.weight' not in w:
            return x @ w[blk + 'attn_q.weight'].T, None, kv_a
        q_a = x @ w[blk + 'attn_q_a.weight'].T
        if swap:
            fused = np.concatenate([kv_a, q_a], -1)
            q_a, kv_a = np.split(fused, [q_a.shape[-1]], -1)
        q_latent = self.rms_norm(q_a, w[blk + 'attn_q_a_norm.weight'])
        return q_latent @ w[blk + 'attn_q_b.weight'].T, q_latent, kv_a

    def keys_and_values(self, blk, latent):
        """Per-head keys (without RoPE part) and values: [rows, heads, dim] each. Older files hold both in one tensor."""
        hp, w = self.hp, self.weights
        if blk + 'attn_kv_b.weight' in w:
            both = w[blk + 'attn_kv_b.weight'].reshape(hp.heads, hp.nope_dim + hp.value_dim, hp.kv_lora)
            k_b, v_b = both[:, :hp.nope_dim], both[:, hp.nope_dim:]
        else:
            k_b, v_b = w[blk + 'attn_k_b.weight'].transpose(0, 2, 1), w[blk + 'attn_v_b.weight']
        return np.einsum('tc,hdc->thd', latent, k_b), np.einsum('tc,hvc->thv', latent, v_b)

    def attention(self, blk, layer, x, keep, swap, put):
        """Expanded MLA. keep is the selection of an earlier layer or None; returns the output and the selection that is in force."""
        hp, w = self.hp, self.weights
        rows = len(x)
        q, q_latent, kv_a = self.query_and_latent(blk, x, swap)
        q = q.reshape(rows, hp.heads, hp.head_dim)
        q_nope, q_rope = q[..., :hp.nope_dim], self.rotate(q[..., hp.nope_dim:])
        latent = self.rms_norm(kv_a[:, :hp.kv_lora], w[blk + 'attn_kv_a_norm.weight'])
        k_rope = self.rotate(kv_a[:, hp.kv_lora:])
        put('kv_latent', latent)
        put('k_pe', k_rope)
        k, v = self.keys_and_values(blk, latent)
        if hp.index_topk and hp.has_indexer[layer] and blk + 'indexer.attn_k.weight' in w:
            keep = self.select(blk, x, q_latent, put)
        scores = np.einsum('thd,shd->hts', q_nope, k) + np.einsum('thr,sr->hts', q_rope, k_rope)
        allowed = np.tri(rows, dtype=bool) if keep is None else keep
        p = softmax(np.where(allowed, scores * hp.attention_scale, -np.inf))
        mix = np.einsum('hts,shv->thv', p, v).reshape(rows, -1)
        put('attn_mix', mix)
        return mix @ w[blk + 'attn_output.weight'].T, keep

    def route(self, blk, x):
        """Expert indices [rows, used] and their weights."""
        hp, w = self.hp, self.weights
        logits = x @ w[blk + 'ffn_gate_inp.weight'].T
        p = sigmoid(logits) if hp.gate == GATE_SIGMOID else softmax(logits)
        scores = p + w.get(blk + 'exp_probs_b.bias', 0.0)  # the bias decides who is chosen, not how much each counts
        if hp.groups > 1:
            rows, experts = scores.shape
            group_score = np.sort(scores.reshape(rows, hp.groups, -1), -1)[..., -2:].sum(-1)
            banned = np.ones((rows, hp.groups), bool)
            np.put_along_axis(banned, largest(group_score, hp.groups_used), False, -1)
            scores = np.where(np.repeat(banned, experts // hp.groups, -1), -np.inf, scores)
        chosen = largest(scores, hp.experts_used)
        share = np.take_along_axis(p, chosen, -1)
        if hp.expert_norm:
            share = share / share.sum(-1, keepdims=True)
        return chosen, share * hp.expert_scale

    def ffn(self, blk, layer, x, put):
        hp, w = self.hp, self.weights
        if layer < hp.dense_layers:
            return swiglu(x, *(w[f'{blk}ffn_{name}.weight'] for name in ('gate', 'up', 'down')))
        chosen, share = self.route(blk, x)
        put('experts', chosen)
        y = swiglu(x, *(w[f'{blk}ffn_{name}_shexp.weight'] for name in ('gate', 'up', 'down')))
        experts = [w[f'{blk}ffn_{name}_exps.weight'] for name in ('gate', 'up', 'down')]
        for row in range(len(x)):
            for expert, weight in zip(chosen[row], share[row]):
                y[row] += weight * swiglu(x[row], *(e[expert] for e in experts))
        return y

    def forward(self, ids, swap=False):
        """Logits [rows, vocabulary]; the last row's states: embedding, after each layer but the last, after output_norm; intermediates."""
        w = self.weights
        named = {}
        x = w['token_embd.weight'][np.asarray(ids)]
        states = [x[-1]]
        keep = None
        for layer in range(self.hp.layers):
            blk = f'blk.{layer}.'

            def put(name, value, blk=blk):
                named[blk + name] = np.asarray(value)

            h = self.rms_norm(x, w[blk + 'attn_norm.weight'])
            put('attn_norm', h)
            out, keep = self.attention(blk, layer, h, keep, swap, put)
            put('attn_out', out)
            x = x + out
            h = self.rms_norm(x, w[blk + 'ffn_norm.weight'])
            put('ffn_norm', h)
            out = self.ffn(blk, layer, h, put)
            put('ffn_out', out)
            x = x + out
            put('out', x)
            states.append(x[-1])
        y = self.rms_norm(x, w['output_norm.weight'])
        states[-1] = y[-1]
        return y @ w.get('output.weight', w['token_embd.weight']).T, states, named


def relative_l2(got, want):
    return float(np.linalg.norm(np.asarray(got) - np.asarray(want)) / np.linalg.norm(want))


def check(model, golden, name):
    """Compare with recorded results; True if everything is within the tolerance."""
    logits, states, _ = model.forward(golden['ids'])
    if len(states) != len(golden['layer_last']):
        sys.exit(f'{name}: {len(states)} states, {len(golden["layer_last"])} recorded')
    worst_logits = max(relative_l2(logits[int(row)], want) for row, want in golden['logits'].items())
    worst_states = max(relative_l2(*pair) for pair in zip(states, golden['layer_last']))
    same = int((logits.argmax(-1) == np.asarray(golden['argmax_each'])).sum())
    print(f'{name}: logits {worst_logits:.2e}, states {worst_states:.2e} relative L2, next token {same}/{len(golden["ids"])}')
    return max(worst_logits, worst_states) <= TOLERANCE


def main():
    parser = argparse.ArgumentParser(description='Reference forward pass in float64.')
    parser.add_argument('model')
    parser.add_argument('ids', nargs='?', help='token ids joined by commas')
    parser.add_argument('--swap', action='store_true', help='join q_a and kv_a in file order')
    parser.add_argument('--dump', metavar='FILE.npz', help='write every intermediate')
    parser.add_argument('--check', nargs=2, metavar=('GOLDEN.json', 'NAME'), help='compare with recorded results')
    options = parser.parse_args()
    if not options.ids and not options.check:
        parser.error('IDS or --check is needed')
    model = Model(options.model)
    if options.check:
        path, name = options.check
        with open(path, encoding='utf-8') as file:
            golden = json.load(file)[name]
        sys.exit(0 if check(model, golden, name) else 1)
    logits, _, named = model.forward([int(i) for i in options.ids.split(',')], options.swap)
    if options.dump:
        ids = np.array([int(i) for i in options.ids.split(',')], np.int32)
        np.savez(options.dump, ids=ids, logits=logits, **named)
    p = softmax(logits[-1])
    entropy = -(p * np.log(p + 1e-30)).sum()
    print(f'next {int(p.argmax())} probability {p.max():.4f} entropy {entropy:.3f}')


if __name__ == '__main__':
    main()
