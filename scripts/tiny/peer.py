"""The tiny model in Hugging Face transformers, an implementation that shares nothing with ours: the source of the golden results."""
import numpy as np
import torch
from gguf import GGUFReader, dequantize

ATTENTION = {  # transformers: (training, GGUF)
    'q_a_proj': ('q_a', 'attn_q_a'),
    'q_a_layernorm': ('q_a_norm', 'attn_q_a_norm'),
    'q_b_proj': ('q_b', 'attn_q_b'),
    'kv_a_proj_with_mqa': ('kv_a', 'attn_kv_a_mqa'),
    'kv_a_layernorm': ('kv_a_norm', 'attn_kv_a_norm'),
    'o_proj': ('o', 'attn_output'),
    'indexer.wq_b': ('iq', 'indexer.attn_q_b'),
    'indexer.wk': ('ik', 'indexer.attn_k'),
    'indexer.k_norm': ('ikn', 'indexer.k_norm'),
    'indexer.weights_proj': ('iw', 'indexer.proj'),
}
MLP = ('gate', 'up', 'down')


def from_training(model):
    """State dict for transformers from the model of model.py."""
    state = {'model.embed_tokens.weight': model.emb.weight, 'lm_head.weight': model.head.weight, 'model.norm.weight': model.norm.weight}
    for i, block in enumerate(model.blocks):
        layer = f'model.layers.{i}.'
        state[layer + 'input_layernorm.weight'] = block.n1.weight
        state[layer + 'post_attention_layernorm.weight'] = block.n2.weight
        for theirs, (ours, _) in ATTENTION.items():
            state[f'{layer}self_attn.{theirs}.weight'] = getattr(block.attn, ours).weight
        state[layer + 'self_attn.kv_b_proj.weight'] = block.attn.kv_b.weight
        state[layer + 'self_attn.indexer.k_norm.bias'] = block.attn.ikn.bias
        if hasattr(block.mlp, 'router'):
            state[layer + 'mlp.gate.weight'] = block.mlp.router
            state[layer + 'mlp.gate.e_score_correction_bias'] = block.mlp.bias
            state[layer + 'mlp.experts.gate_up_proj'] = block.mlp.gu
            state[layer + 'mlp.experts.down_proj'] = block.mlp.dn
            for name in MLP:
                state[f'{layer}mlp.shared_experts.{name}_proj.weight'] = getattr(block.mlp.shared, name).weight
        else:
            for name in MLP:
                state[f'{layer}mlp.{name}_proj.weight'] = getattr(block.mlp, name).weight
    return {name: tensor.detach().float() for name, tensor in state.items()}


def read_gguf(path):
    """All tensors of a GGUF file, dequantised to float32."""
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        shape = [int(n) for n in tensor.shape[::-1]]
        tensors[tensor.name] = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape))
    return tensors


def from_gguf(path, config):
    """State dict for transformers from a GGUF file in the layout of to_gguf.py."""
    tensors = read_gguf(path)
    state = {'model.embed_tokens.weight': tensors['token_embd.weight'], 'lm_head.weight': tensors['output.weight'],
             'model.norm.weight': tensors['output_norm.weight']}
    for i in range(config['layers']):
        layer, blk = f'model.layers.{i}.', f'blk.{i}.'
        state[layer + 'input_layernorm.weight'] = tensors[blk + 'attn_norm.weight']
        state[layer + 'post_attention_layernorm.weight'] = tensors[blk + 'ffn_norm.weight']
        for theirs, (_, ours) in ATTENTION.items():
            state[f'{layer}self_attn.{theirs}.weight'] = tensors[f'{blk}{ours}.weight']
        state[layer + 'self_attn.indexer.k_norm.bias'] = tensors[blk + 'indexer.k_norm.bias']
        keys, values = tensors[blk + 'attn_k_b.weight'].transpose(1, 2), tensors[blk + 'attn_v_b.weight']
        state[layer + 'self_attn.kv_b_proj.weight'] = torch.cat((keys, values), 1).reshape(-1, config['kv_lora'])
        if i < config['dense']:
            for name in MLP:
                state[f'{layer}mlp.{name}_proj.weight'] = tensors[f'{blk}ffn_{name}.weight']
            continue
        state[layer + 'mlp.gate.weight'] = tensors[blk + 'ffn_gate_inp.weight']
        state[layer + 'mlp.gate.e_score_correction_bias'] = tensors[blk + 'exp_probs_b.bias']
        state[layer + 'mlp.experts.gate_up_proj'] = torch.cat(
            (tensors[blk + 'ffn_gate_exps.weight'], tensors[blk + 'ffn_up_exps.weight']), 1)
        state[layer + 'mlp.experts.down_proj'] = tensors[blk + 'ffn_down_exps.weight']
        for name in MLP:
            state[f'{layer}mlp.shared_experts.{name}_proj.weight'] = tensors[f'{blk}ffn_{name}_shexp.weight']
    return state


def lowest_index_wins():
    """Make torch break ties in any top-k by the lowest index, as the engine does. On its own it breaks them differently on every device,
    and the indexer has ties: scores that a ReLU made zero."""
    def topk(x, k, dim=-1, largest=True, sorted=True):  # the signature is torch's
        assert largest
        values, indices = torch.sort(x, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    torch.topk = topk
    torch.Tensor.topk = topk


def one_epsilon(model, eps):
    """GGUF engines use the one epsilon of the metadata in every RMSNorm; transformers has its own for the two inner norms."""
    for layer in model.model.layers:
        for name in ('q_a_layernorm', 'kv_a_layernorm'):
            norm = getattr(layer.self_attn, name, None)
            if norm is not None:
                norm.variance_epsilon = eps


def load(state, config):
    """A float32 transformers model that holds exactly these weights."""
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
    model = GlmMoeDsaForCausalLM(GlmMoeDsaConfig(
        vocab_size=config['vocab'], hidden_size=config['hidden'], intermediate_size=config['dense_ff'],
        moe_intermediate_size=config['ff'], num_hidden_layers=config['layers'], num_attention_heads=config['heads'],
        num_key_value_heads=config['heads'], n_routed_experts=config['experts'], num_experts_per_tok=config['topk'],
        first_k_dense_replace=config['dense'], routed_scaling_factor=config['scale'], kv_lora_rank=config['kv_lora'],
        q_lora_rank=config['q_lora'], qk_rope_head_dim=config['rope'], v_head_dim=config['v'], qk_nope_head_dim=config['nope'],
        index_topk=config['idx_topk'], index_head_dim=config['idx_dim'], index_n_heads=config['idx_heads'], rms_norm_eps=config['eps'],
        rope_parameters={'rope_type': 'default', 'rope_theta': config['theta']}, max_position_embeddings=config['ctx'],
        attn_implementation='eager')).float().eval()
    left = model.load_state_dict(state, strict=False)
    if left.missing_keys or left.unexpected_keys:
        raise SystemExit(f'weights do not fit: missing {left.missing_keys[:8]}, unexpected {left.unexpected_keys[:8]}')
    one_epsilon(model, config['eps'])
    return model
