#!/usr/bin/env python3
"""Weights of the tiny model -> GGUF in the layout of GLM-5 files.

    to_gguf.py DIR OUT.gguf [f32|bf16]

DIR is where train.py wrote. Inside a block tensors stand in alphabetical order, as in real files: the key-value half of the fused
q_a/kv_a projection comes before the query half, which is not the order in which the model consumes them.
"""
import glob
import json
import os
import sys

import numpy as np

import gguf_file

TEMPLATE = """[gMASK]<sop>{%- for m in messages if m.role == 'system' -%}<|system|>{{ m.content }}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|user|>{{ m.content }}
{%- elif m.role == 'assistant' -%}<|assistant|></think>{{ m.content.split('</think>')[-1].strip() }}
{%- elif m.role == 'tool' -%}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{ '</think>' if (enable_thinking is defined and not enable_thinking) else '<think>' }}\
{%- endif -%}"""
ROLES = {'eos': '<|endoftext|>', 'padding': '<|endoftext|>', 'eot': '<|user|>', 'eom': '<|observation|>', 'bos': '[gMASK]',
         'unknown': '<|endoftext|>'}
ATTENTION = {  # GGUF: training
    'attn_q_a': 'q_a',
    'attn_q_a_norm': 'q_a_norm',
    'attn_q_b': 'q_b',
    'attn_kv_a_mqa': 'kv_a',
    'attn_kv_a_norm': 'kv_a_norm',
    'attn_output': 'o',
    'indexer.attn_q_b': 'iq',
    'indexer.attn_k': 'ik',
    'indexer.k_norm': 'ikn',
    'indexer.proj': 'iw',
}


def read_weights(folder):
    weights = {}
    for path in sorted(glob.glob(os.path.join(folder, 'w*.npz'))):
        part = np.load(path)
        for name in part.files:
            weights[name] = (part[name].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return weights


def metadata(config, vocabulary, kind):
    arch = 'glm-dsa.'
    head_dim = config['nope'] + config['rope']
    pairs = [
        ('general.architecture', 'glm-dsa'),
        ('general.type', 'model'),
        ('general.name', 'Tiny GLM-5'),
        ('general.license', 'cc0-1.0'),
        ('general.description', 'A 23M-parameter model with the GLM-5 architecture, trained on a synthetic chat corpus to exercise an '
                                'inference engine'),
        ('general.alignment', gguf_file.ALIGNMENT),
        ('general.quantization_version', 2),
        ('general.file_type', 0 if kind == 'f32' else 32),
        (arch + 'block_count', config['layers'] + 1),
        (arch + 'context_length', config['ctx']),
        (arch + 'embedding_length', config['hidden']),
        (arch + 'feed_forward_length', config['dense_ff']),
        (arch + 'vocab_size', config['vocab']),
        (arch + 'expert_count', config['experts']),
        (arch + 'expert_used_count', config['topk']),
        (arch + 'expert_shared_count', 1),
        (arch + 'expert_feed_forward_length', config['ff']),
        (arch + 'expert_gating_func', 2),
        (arch + 'leading_dense_block_count', config['dense']),
        (arch + 'nextn_predict_layers', 1),
        (arch + 'expert_group_count', 1),
        (arch + 'expert_group_used_count', 1),
        (arch + 'attention.head_count', config['heads']),
        (arch + 'attention.head_count_kv', 1),
        (arch + 'attention.q_lora_rank', config['q_lora']),
        (arch + 'attention.kv_lora_rank', config['kv_lora']),
        (arch + 'attention.key_length', config['kv_lora'] + config['rope']),
        (arch + 'attention.value_length', config['kv_lora']),
        (arch + 'attention.key_length_mla', head_dim),
        (arch + 'attention.value_length_mla', config['v']),
        (arch + 'attention.indexer.head_count', config['idx_heads']),
        (arch + 'attention.indexer.key_length', config['idx_dim']),
        (arch + 'attention.indexer.top_k', config['idx_topk']),
        (arch + 'rope.dimension_count', config['rope']),
        (arch + 'attention.layer_norm_rms_epsilon', config['eps']),
        (arch + 'rope.freq_base', config['theta']),
        (arch + 'expert_weights_scale', config['scale']),
        (arch + 'expert_weights_norm', True),
    ]
    pairs += vocabulary.metadata()
    pairs += [(f'tokenizer.ggml.{role}_token_id', vocabulary.special[token]) for role, token in ROLES.items()]
    return pairs + [('tokenizer.ggml.add_bos_token', False), ('tokenizer.chat_template', TEMPLATE)]


def block(number, prefix, weights, config):
    """(name, array) pairs of one layer, sorted by name. prefix is the layer's in the training names."""
    blk, attn, mlp = f'blk.{number}.', prefix + 'attn.', prefix + 'mlp.'
    out = {blk + 'attn_norm.weight': weights[prefix + 'n1.weight'], blk + 'ffn_norm.weight': weights[prefix + 'n2.weight']}
    for name, training in ATTENTION.items():
        out[f'{blk}{name}.weight'] = weights[f'{attn}{training}.weight']
    out[blk + 'indexer.k_norm.bias'] = weights[attn + 'ikn.bias']
    kv_b = weights[attn + 'kv_b.weight'].reshape(config['heads'], config['nope'] + config['v'], config['kv_lora'])
    out[blk + 'attn_k_b.weight'] = kv_b[:, :config['nope']].transpose(0, 2, 1)
    out[blk + 'attn_v_b.weight'] = kv_b[:, config['nope']:]
    if mlp + 'router' in weights:
        out[blk + 'ffn_gate_inp.weight'] = weights[mlp + 'router']
        out[blk + 'exp_probs_b.bias'] = weights[mlp + 'bias']
        out[blk + 'ffn_gate_exps.weight'] = weights[mlp + 'gu'][:, :config['ff']]
        out[blk + 'ffn_up_exps.weight'] = weights[mlp + 'gu'][:, config['ff']:]
        out[blk + 'ffn_down_exps.weight'] = weights[mlp + 'dn']
        for name in ('gate', 'up', 'down'):
            out[f'{blk}ffn_{name}_shexp.weight'] = weights[f'{mlp}shared.{name}.weight']
    else:
        for name in ('gate', 'up', 'down'):
            out[f'{blk}ffn_{name}.weight'] = weights[f'{mlp}{name}.weight']
    return out


def all_tensors(weights, config):
    tensors = [('token_embd.weight', weights['emb.weight'])]
    for number in range(config['layers']):
        tensors += sorted(block(number, f'blocks.{number}.', weights, config).items())
    last = config['layers']
    nextn = block(last, 'mtp.', weights, config)
    for name, training in {'eh_proj': 'eh', 'enorm': 'enorm', 'hnorm': 'hnorm', 'shared_head_norm': 'snorm'}.items():
        nextn[f'blk.{last}.nextn.{name}.weight'] = weights[training + '.weight']
    tensors += sorted(nextn.items())
    return tensors + [('output_norm.weight', weights['norm.weight']), ('output.weight', weights['head.weight'])]


def main():
    folder, out = sys.argv[1], sys.argv[2]
    kind = sys.argv[3] if len(sys.argv) > 3 else 'f32'
    with open(os.path.join(folder, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    vocabulary = gguf_file.Vocabulary(os.path.join(folder, 'tokenizer.json'))
    tensors = all_tensors(read_weights(folder), config)
    gguf_file.write(out, metadata(config, vocabulary, kind), tensors, kind)
    print(out, len(tensors), 'tensors,', sum(array.size for _, array in tensors), 'parameters')


if __name__ == '__main__':
    main()
