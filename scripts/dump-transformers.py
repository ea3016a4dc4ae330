#!/usr/bin/env python3
"""Save what transformers computes for a prompt, for the diff of rankscope: an .npz with the names that scripts/reference.py uses.

    dump-transformers.py MODEL IDS OUT.npz [--dtype float32] [--device cpu]

MODEL is a folder or a name that transformers can load. IDS are token ids joined by commas. Hooks on the decoder layers record norms, attention
and feed-forward outputs and the residual stream; names of modules are those of the DeepSeek and GLM classes.
Needs torch, transformers and numpy.
"""
import argparse
import sys

import numpy as np


def first_tensor(value):
    """Modules return a tensor or a tuple that begins with one."""
    return value[0] if isinstance(value, (tuple, list)) else value


def rows(value):
    """The one sequence of a batch as float32 rows."""
    x = first_tensor(value).detach().float().cpu().numpy()
    return x.reshape(-1, x.shape[-1])


def attach(model, store):
    """Hooks that fill store; returns their handles."""
    # Attribute of a decoder layer: name of its output.
    parts = {'input_layernorm': 'attn_norm', 'self_attn': 'attn_out', 'post_attention_layernorm': 'ffn_norm', 'mlp': 'ffn_out'}
    handles = []

    def keep(name):
        def hook(_module, _inputs, output):
            store[name] = rows(output)
        return hook

    for number, layer in enumerate(model.model.layers):
        for attribute, name in parts.items():
            handles.append(getattr(layer, attribute).register_forward_hook(keep(f'blk.{number}.{name}')))
        handles.append(layer.register_forward_hook(keep(f'blk.{number}.out')))
    return handles


def main():
    parser = argparse.ArgumentParser(description='Save the intermediates of a transformers model.')
    parser.add_argument('model')
    parser.add_argument('ids', help='token ids joined by commas')
    parser.add_argument('out', help='.npz file to write')
    parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16', 'float16'])
    parser.add_argument('--device', default='cpu')
    options = parser.parse_args()
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as problem:
        sys.exit(f'dump-transformers.py: {problem}')
    ids = [int(i) for i in options.ids.split(',')]
    model = AutoModelForCausalLM.from_pretrained(options.model, torch_dtype=getattr(torch, options.dtype), attn_implementation='eager')
    model = model.to(options.device).eval()
    store = {}
    handles = attach(model, store)
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=options.device), use_cache=False).logits
    for handle in handles:
        handle.remove()
    np.savez(options.out, ids=np.array(ids, np.int32), logits=rows(logits), **store)
    print(f'{len(store) + 1} arrays of {len(ids)} tokens')


if __name__ == '__main__':
    main()
