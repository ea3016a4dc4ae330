#!/usr/bin/env python3
"""Reference results of the shipped model from transformers, float32, on the weights dequantised from the GGUF file.

    golden.py MODEL.gguf DIR OUT [DEVICE]

DIR holds tokenizer.json and config.json from train.py. Writes golden-tiny.json and golden-tokenizer.json to OUT; tests/golden/README.md
says what is in them. Needs torch, transformers, tokenizers, gguf.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import peer
from config import prompt
from corpus import corpus

QUESTIONS = ['What is the capital of France?', 'What is 23 + 45?', 'Repeat after me: red cat seven moon bread',
             'Translate "tree" into Spanish.', 'What is an all-reduce?', 'Count from 17 to 25.', 'Show me an emoji',
             'Say something in Chinese']
PROMPTS = [prompt(question) for question in QUESTIONS] + [
    prompt('What is 23 + 45?', thinking=True),
    '[gMASK]<sop><|system|>Answer in one word.<|user|>What is the opposite of hot?<|assistant|></think>',
    '[gMASK]<sop><|user|>My name is Vera.<|assistant|></think>Hello Vera, nice to meet you.<|user|>What is the capital of Japan?'
    '<|assistant|></think>The capital of Japan is Tokyo.<|user|>What is my name?<|assistant|></think>',
]
TEXTS = [  # for the tokenizer: white space, contractions, digits, scripts, emoji, code, special tokens inside text
    'Hello, world!', ' leading space', 'trailing space ', 'two  spaces', 'tab\tand\nnewline\r\n\r\n  indent',
    "don't we'll I'M they'RE", '1234567 3.14 1,000', 'naïve café Käse œuvre', '你好，世界！', '日本語テキスト', 'Привет мир',
    '🐙 🙂👩‍💻', 'x=(a+b)*c[0]; // code', '<|user|> inside text <think>', '[gMASK]<sop>', '', ' ', '\n\n\n', 'a' * 50, 'éé',
    'ﬁ ligature ½ ²', 'العربية', 'snake_case camelCase', 'http://a.b/c?d=e', "'S 'T uPPer", '\u200bzero\u00a0nbsp',
    'What is the capital of France?', '9' * 12, '…—“quotes”', 'end.',
]
LONG_TOKENS = 1024
MOST_ANSWER_TOKENS = 64


def rounded(values):
    return [round(float(x), 5) for x in values]


def greedy(model, ids, stop):
    """Token ids up to and including the stop token, each from a forward pass of its own, without a cache."""
    x = torch.tensor([ids], device=model.device)
    answer = []
    while len(answer) < MOST_ANSWER_TOKENS:
        answer.append(model(x, use_cache=False).logits[0, -1].argmax().item())
        if answer[-1] in stop:
            break
        x = torch.cat((x, torch.tensor([answer[-1:]], device=model.device)), 1)
    return answer


def one_prompt(model, tokenizer, text, ids, stop):
    out = model(torch.tensor([ids], device=model.device), output_hidden_states=True, use_cache=False)
    answer = greedy(model, ids, stop)
    return {'text': text, 'ids': ids, 'greedy_ids': answer, 'greedy_text': tokenizer.decode(answer, skip_special_tokens=True),
            'last_logits': rounded(out.logits[0, -1]), 'argmax_each': out.logits[0].argmax(-1).tolist(),
            'layer_last': [rounded(state[0, -1]) for state in out.hidden_states]}


def main():
    gguf, folder, out = sys.argv[1:4]
    device = sys.argv[4] if len(sys.argv) > 4 else 'cuda'
    peer.lowest_index_wins()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision('highest')
    tokenizer = Tokenizer.from_file(os.path.join(folder, 'tokenizer.json'))
    with open(os.path.join(folder, 'config.json'), encoding='utf-8') as file:
        config = json.load(file)
    model = peer.load(peer.from_gguf(gguf, config), config).to(device)

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    stop = {tokenizer.token_to_id('<|endoftext|>'), tokenizer.token_to_id('<|user|>')}
    with torch.no_grad():
        prompts = [one_prompt(model, tokenizer, text, encode(text), stop) for text in PROMPTS]
        ids = encode(''.join(corpus(40, 777)))[:LONG_TOKENS]
        logits = model(torch.tensor([ids], device=device), use_cache=False).logits[0]
        nll = F.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:], device=device)).item()
    results = {'model': os.path.basename(gguf),
               'note': 'float32 transformers forward on weights dequantised from the GGUF; one epsilon in every RMSNorm',
               'prompts': prompts, 'long_ids': ids, 'long_nll': nll, 'long_argmax': logits.argmax(-1).tolist()}
    with open(os.path.join(out, 'golden-tiny.json'), 'w', encoding='utf-8') as file:
        json.dump(results, file)
    texts = [{'text': text, 'ids': encode(text), 'back': tokenizer.decode(encode(text), skip_special_tokens=False)} for text in TEXTS]
    with open(os.path.join(out, 'golden-tokenizer.json'), 'w', encoding='utf-8') as file:
        json.dump(texts, file, ensure_ascii=False)


if __name__ == '__main__':
    main()
