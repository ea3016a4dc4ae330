"""Shape of the tiny model. The dict is also what train.py writes as config.json."""

CONFIG = {
    'vocab': 2048,
    'hidden': 256,
    'layers': 6,
    'dense': 1,         # leading layers without experts
    'dense_ff': 768,
    'heads': 8,
    'q_lora': 128,
    'kv_lora': 512,     # with rope 64 this is the cache row of the full-size models
    'nope': 32,
    'rope': 64,
    'v': 32,
    'experts': 16,
    'topk': 4,
    'ff': 256,          # of one expert
    'scale': 2.5,
    'eps': 1e-5,
    'theta': 1e6,
    'idx_heads': 4,
    'idx_dim': 128,
    'idx_topk': 2048,   # the whole context: attention is dense
    'ctx': 2048,
}

SPECIAL_TOKENS = [
    '<|endoftext|>', '[MASK]', '[gMASK]', '[sMASK]', '<sop>', '<eop>', '<|system|>', '<|user|>', '<|assistant|>', '<|observation|>',
    '<think>', '</think>', '<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>',
]


def prompt(question, thinking=False):
    """One user turn in the chat format, ready for the answer."""
    return f'[gMASK]<sop><|user|>{question}<|assistant|>' + ('<think>' if thinking else '</think>')
