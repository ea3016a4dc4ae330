#!/usr/bin/env python3
"""Random models of three layers, one per architecture variant, with the results of transformers' own implementation of each.

    variants.py DIR OUT [DEVICE]

DIR holds tokenizer.json from train.py. Writes fixture-NAME.gguf and golden-variants.json to OUT; tests/golden/README.md says what is in
them. Needs torch, transformers, numpy, gguf.
"""
import json
import math
import os
import sys

import torch
import transformers as hf

import gguf_file
import peer
from golden import rounded

TOKENS = 48
YARN_FACTOR, YARN_CONTEXT = 40.0, 4096

SHAPE = {'vocab_size': 2048, 'hidden_size': 64, 'intermediate_size': 128, 'moe_intermediate_size': 32, 'num_hidden_layers': 3,
         'num_attention_heads': 4, 'num_key_value_heads': 4, 'n_routed_experts': 8, 'num_experts_per_tok': 2, 'n_shared_experts': 1,
         'first_k_dense_replace': 1, 'kv_lora_rank': 512, 'qk_rope_head_dim': 64, 'v_head_dim': 32, 'qk_nope_head_dim': 32,
         'max_position_embeddings': 4096, 'attn_implementation': 'eager'}
INDEXER = {'index_topk': 16, 'index_head_dim': 128, 'index_n_heads': 4}
GROUPS = {'n_routed_experts': 16, 'num_experts_per_tok': 4, 'n_group': 4, 'topk_group': 2}
INDEXER_KEYS = {'attention.indexer.head_count': 4, 'attention.indexer.key_length': 128, 'attention.indexer.top_k': 16}
SIGMOID_KEYS = {'expert_gating_func': 2, 'expert_weights_norm': True, 'leading_dense_block_count': 1}
SOFTMAX_KEYS = {'expert_gating_func': 1, 'expert_weights_norm': False, 'leading_dense_block_count': 1}
GROUP_KEYS = {'expert_group_count': 4, 'expert_group_used_count': 2}

# transformers: GGUF. What a variant does not have is passed over.
TENSORS = {
    'input_layernorm.weight': 'attn_norm.weight',
    'post_attention_layernorm.weight': 'ffn_norm.weight',
    'self_attn.q_proj.weight': 'attn_q.weight',
    'self_attn.indexer.k_norm.bias': 'indexer.k_norm.bias',
    **{f'self_attn.{theirs}.weight': f'{ours}.weight' for theirs, (_, ours) in peer.ATTENTION.items()},
    'mlp.gate.weight': 'ffn_gate_inp.weight',
    'mlp.gate.e_score_correction_bias': 'exp_probs_b.bias',
    'mlp.experts.down_proj': 'ffn_down_exps.weight',
    **{f'mlp.{name}_proj.weight': f'ffn_{name}.weight' for name in peer.MLP},
    **{f'mlp.shared_experts.{name}_proj.weight': f'ffn_{name}_shexp.weight' for name in peer.MLP},
}


def plain(theta):
    return {'rope_type': 'default', 'rope_theta': theta}


def yarn(mscale):
    return {'rope_type': 'yarn', 'rope_theta': 10000.0, 'factor': YARN_FACTOR, 'original_max_position_embeddings': YARN_CONTEXT,
            'beta_fast': 32, 'beta_slow': 1, 'mscale': mscale, 'mscale_all_dim': mscale}


def yarn_keys(multiplier):
    return {'rope.freq_base': 10000.0, 'rope.scaling.type': 'yarn', 'rope.scaling.factor': YARN_FACTOR,
            'rope.scaling.original_context_length': YARN_CONTEXT, 'rope.scaling.yarn_log_multiplier': multiplier}


def fill(model, seed):
    """Random weights of bf16 precision, scaled so that states neither vanish nor explode."""
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor):
        return torch.randn(tensor.shape, generator=generator)

    with torch.no_grad():
        biases = [tensor for name, tensor in model.named_buffers() if 'e_score_correction_bias' in name]
        for name, tensor in model.named_parameters():
            if tensor.dim() >= 2:
                tensor.copy_(noise(tensor) * (.5 if 'embed' in name else .9 / tensor.shape[-1] ** .5))
            elif 'bias' in name:
                tensor.copy_(noise(tensor) * .1)
            else:
                tensor.copy_(1 + .2 * noise(tensor))
        for tensor in biases:
            tensor.copy_(noise(tensor) * .05)
        for tensor in list(model.parameters()) + biases:
            tensor.copy_(tensor.bfloat16().float())


def layer_tensors(state, layer, blk, config, legacy):
    out = {blk + ours: state[layer + theirs] for theirs, ours in TENSORS.items() if layer + theirs in state}
    fused = state.get(layer + 'mlp.experts.gate_up_proj')
    if fused is not None:
        half = fused.shape[1] // 2
        out[blk + 'ffn_gate_exps.weight'], out[blk + 'ffn_up_exps.weight'] = fused[:, :half], fused[:, half:]
    kv_b = state[layer + 'self_attn.kv_b_proj.weight']
    if legacy:
        out[blk + 'attn_kv_b.weight'] = kv_b
    else:
        nope = config.qk_nope_head_dim
        kv_b = kv_b.reshape(config.num_attention_heads, nope + config.v_head_dim, config.kv_lora_rank)
        out[blk + 'attn_k_b.weight'], out[blk + 'attn_v_b.weight'] = kv_b[:, :nope].transpose(0, 2, 1), kv_b[:, nope:]
    return sorted(out.items())


def all_tensors(model, config, legacy):
    state = {name: tensor.float().cpu().numpy() for name, tensor in model.state_dict().items()}
    tensors = [('token_embd.weight', state['model.embed_tokens.weight'])]
    for i in range(config.num_hidden_layers):
        tensors += layer_tensors(state, f'model.layers.{i}.', f'blk.{i}.', config, legacy)
    return tensors + [('output_norm.weight', state['model.norm.weight']), ('output.weight', state['lm_head.weight'])]


def metadata(name, arch, config, extra, legacy):
    head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    keys = {
        'block_count': config.num_hidden_layers,
        'context_length': 4096,
        'embedding_length': config.hidden_size,
        'feed_forward_length': config.intermediate_size,
        'vocab_size': config.vocab_size,
        'attention.head_count': config.num_attention_heads,
        'attention.head_count_kv': config.num_attention_heads if legacy else 1,
        'attention.kv_lora_rank': config.kv_lora_rank,
        'rope.dimension_count': config.qk_rope_head_dim,
        'attention.layer_norm_rms_epsilon': float(config.rms_norm_eps),
        'expert_count': config.n_routed_experts,
        'expert_used_count': config.num_experts_per_tok,
        'expert_shared_count': config.n_shared_experts,
        'expert_feed_forward_length': config.moe_intermediate_size,
        'expert_weights_scale': float(config.routed_scaling_factor),
    }
    if legacy:
        keys |= {'attention.key_length': head_dim, 'attention.value_length': config.v_head_dim}
    else:
        keys |= {'attention.key_length': config.kv_lora_rank + config.qk_rope_head_dim, 'attention.value_length': config.kv_lora_rank,
                 'attention.key_length_mla': head_dim, 'attention.value_length_mla': config.v_head_dim}
    if getattr(config, 'q_lora_rank', None):
        keys['attention.q_lora_rank'] = config.q_lora_rank
    keys |= extra
    return [('general.architecture', arch), ('general.name', name), ('general.alignment', gguf_file.ALIGNMENT),
            *((f'{arch}.{key}', value) for key, value in keys.items())]


class Maker:
    def __init__(self, folder, out, device):
        vocabulary = gguf_file.Vocabulary(os.path.join(folder, 'tokenizer.json'))
        roles = {'eos': '<|endoftext|>', 'eot': '<|user|>', 'bos': '[gMASK]'}
        self.vocabulary = vocabulary.metadata()
        self.vocabulary += [(f'tokenizer.ggml.{role}_token_id', vocabulary.special[token]) for role, token in roles.items()]
        self.vocabulary.append(('tokenizer.ggml.add_bos_token', False))
        self.out, self.device = out, device
        self.results = {}

    def make(self, name, arch, model_class, config, extra, legacy=False, magnitude=1.0):
        """magnitude is YaRN's m. The attention scale is set to the authors' m^2 / sqrt(d): one port leaves m out."""
        model = model_class(config).float().eval()
        fill(model, len(name))
        model = model.to(self.device)
        for layer in model.model.layers:
            layer.self_attn.scaling = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -.5 * magnitude ** 2
        peer.one_epsilon(model, config.rms_norm_eps)
        gguf_file.write(os.path.join(self.out, f'fixture-{name}.gguf'), metadata(name, arch, config, extra, legacy) + self.vocabulary,
                        all_tensors(model, config, legacy))
        ids = torch.randint(0, 2000, (TOKENS,), generator=torch.Generator().manual_seed(5)).tolist()
        with torch.no_grad():
            out = model(torch.tensor([ids], device=self.device), output_hidden_states=True, use_cache=False)
        logits = out.logits[0]
        self.results[name] = {
            'model': f'fixture-{name}.gguf', 'ids': ids, 'argmax_each': logits.argmax(-1).tolist(),
            'logits': {str(row): rounded(logits[row]) for row in (0, TOKENS // 2, TOKENS - 1)},
            'layer_last': [rounded(state[0, -1]) for state in out.hidden_states]}
        print(name, 'logits deviate', round(logits.std().item(), 3))


def magnitude(multiplier):
    return 1 + multiplier * math.log(YARN_FACTOR)


def main():
    folder, out = sys.argv[1:3]
    maker = Maker(folder, out, sys.argv[3] if len(sys.argv) > 3 else 'cuda')
    peer.lowest_index_wins()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision('highest')
    glm = {'q_lora_rank': 32, 'routed_scaling_factor': 2.5, 'rms_norm_eps': 1e-5}
    maker.make('dsa', 'glm-dsa', hf.GlmMoeDsaForCausalLM,
               hf.GlmMoeDsaConfig(**SHAPE, **INDEXER, **glm, rope_parameters=plain(1e6)),
               {**INDEXER_KEYS, **SIGMOID_KEYS, 'rope.freq_base': 1e6})
    maker.make('dsa-shared', 'glm-dsa', hf.GlmMoeDsaForCausalLM,
               hf.GlmMoeDsaConfig(**SHAPE, **INDEXER, **glm, rope_parameters=plain(8e6), indexer_types=['full', 'full', 'shared']),
               {**INDEXER_KEYS, **SIGMOID_KEYS, 'rope.freq_base': 8e6, 'attention.indexer.types': [True, True, False]})
    deepseek = {**SHAPE, **GROUPS, 'q_lora_rank': 32, 'norm_topk_prob': True, 'routed_scaling_factor': 2.5, 'rms_norm_eps': 1e-6}
    maker.make('v3', 'deepseek2', hf.DeepseekV3ForCausalLM,
               hf.DeepseekV3Config(**deepseek, rope_parameters=yarn(1.0)),
               {**SIGMOID_KEYS, **yarn_keys(0.1), **GROUP_KEYS}, magnitude=magnitude(0.1))
    maker.make('flash', 'deepseek2', hf.Glm4MoeLiteForCausalLM,
               hf.Glm4MoeLiteConfig(**{**SHAPE, 'num_attention_heads': 5, 'num_key_value_heads': 5}, q_lora_rank=32, n_group=1,
                                    topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, rms_norm_eps=1e-5,
                                    rope_parameters=plain(1e6)),
               {**SIGMOID_KEYS, 'rope.freq_base': 1e6})
    maker.make('v32', 'deepseek32', hf.DeepseekV32ForCausalLM,
               hf.DeepseekV32Config(**deepseek, **INDEXER, rope_parameters=yarn(1.0)),
               {**INDEXER_KEYS, **SIGMOID_KEYS, **yarn_keys(0.1), **GROUP_KEYS}, magnitude=magnitude(0.1))
    maker.make('v2lite', 'deepseek2', hf.DeepseekV2ForCausalLM,
               hf.DeepseekV2Config(**{**SHAPE, 'n_shared_experts': 2}, q_lora_rank=None, topk_method='greedy', n_group=1, topk_group=1,
                                   norm_topk_prob=False, routed_scaling_factor=1.0, rms_norm_eps=1e-6, rope_parameters=yarn(0.707)),
               {**SOFTMAX_KEYS, **yarn_keys(0.0707)}, legacy=True, magnitude=magnitude(0.0707))
    with open(os.path.join(out, 'golden-variants.json'), 'w', encoding='utf-8') as file:
        json.dump(maker.results, file)


if __name__ == '__main__':
    main()
