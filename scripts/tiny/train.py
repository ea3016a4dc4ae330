#!/usr/bin/env python3
"""Train the tiny model and its tokenizer on the synthetic chat corpus, then examine it.

    train.py SECONDS OUT

Writes tokenizer.json, config.json and the weights (w0.npz ..., bf16 bits as int16) to OUT and prints the results of examine.py.
Needs a GPU, torch, tokenizers, numpy and transformers. The shipped model took about 300 seconds on one H200.
"""
import json
import math
import multiprocessing
import os
import re
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from config import CONFIG, SPECIAL_TOKENS
from corpus import corpus
from examine import examine
from model import Model, Moe

# The pre-tokenizer that the GGUF key tokenizer.ggml.pre calls glm4.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SEEDS, DOCUMENTS_PER_SEED = range(1, 15), 50000
TOKENIZER_DOCUMENTS = 60000
BATCH, ROWS = 64, 1024
PEAK_RATE, WARM_UP_STEPS, FLOOR = 3e-3, 200, .02
MTP_WEIGHT = .3
BYTES_PER_FILE = 15_500_000


def make_tokenizer(documents):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = re.compile('|'.join(re.escape(token) for token in SPECIAL_TOKENS))
    trainer = trainers.BpeTrainer(vocab_size=CONFIG['vocab'] - len(SPECIAL_TOKENS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((part for text in documents for part in special.split(text) if part), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def documents_of(seed):
    return corpus(DOCUMENTS_PER_SEED, seed)


def learning_rate(step, fraction):
    """Linear warm-up by steps, then a cosine over the time that there is."""
    return PEAK_RATE * min(1, (step + 1) / WARM_UP_STEPS) * (FLOOR + (1 - FLOOR) * .5 * (1 + math.cos(math.pi * fraction)))


def losses(model, batch):
    """Of the head and of the next-token layer."""
    logits, mtp_logits = model(batch[:, :-1])
    return (F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()),
            F.cross_entropy(mtp_logits.float().flatten(0, 1), batch[:, 2:].flatten()))


def train(model, data, seconds):
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{'params': [p for p in parameters if p.dim() >= 2], 'weight_decay': .05},
                                   {'params': [p for p in parameters if p.dim() < 2], 'weight_decay': 0.}],
                                  lr=PEAK_RATE, betas=(.9, .95), fused=True)
    compiled = torch.compile(model)
    generator = torch.Generator(device=data.device).manual_seed(3)
    step, start = 0, None
    while True:
        fraction = 0 if start is None else (time.time() - start) / seconds
        if fraction >= 1:
            break
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(step, fraction)
        offsets = torch.randint(0, len(data) - ROWS - 1, (BATCH,), device=data.device, generator=generator)
        batch = data[offsets[:, None] + torch.arange(ROWS + 1, device=data.device)]
        with torch.autocast('cuda', torch.bfloat16):
            loss, mtp_loss = losses(compiled, batch)
        (loss + MTP_WEIGHT * mtp_loss).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for module in model.modules():
            if isinstance(module, Moe):
                module.balance(1e-3 * (1 - fraction))
        step += 1
        if start is None:  # the clock starts after compilation
            torch.cuda.synchronize()
            start = time.time()
        if step % 500 == 0:
            print(f'step {step}, {time.time() - start:.0f} s, loss {loss.item():.4f}, mtp {mtp_loss.item():.4f}', flush=True)
    print(f'{step} steps, loss {loss.item():.4f}, mtp {mtp_loss.item():.4f}', flush=True)


def round_to_bf16(model):
    """What is written is what is examined."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
        for module in model.modules():
            if isinstance(module, Moe):
                module.bias.copy_(module.bias.bfloat16().float())


def save(model, tokenizer, out):
    tokenizer.save(os.path.join(out, 'tokenizer.json'))
    with open(os.path.join(out, 'config.json'), 'w', encoding='utf-8') as file:
        json.dump(CONFIG, file)
    parts, size = [{}], 0
    for name, tensor in model.state_dict().items():
        if name.endswith('.load'):
            continue
        bits = tensor.bfloat16().view(torch.int16).cpu().numpy()
        if size + bits.nbytes > BYTES_PER_FILE:
            parts.append({})
            size = 0
        parts[-1][name] = bits
        size += bits.nbytes
    for number, part in enumerate(parts):
        np.savez(os.path.join(out, f'w{number}.npz'), **part)


def main():
    seconds, out = float(sys.argv[1]), sys.argv[2]
    os.makedirs(out, exist_ok=True)
    torch.manual_seed(7)
    torch.set_float32_matmul_precision('high')
    with multiprocessing.Pool() as pool:
        documents = [text for part in pool.imap(documents_of, SEEDS) for text in part]
    tokenizer = make_tokenizer(documents[:TOKENIZER_DOCUMENTS])
    ids = np.concatenate([np.array(e.ids, dtype=np.int32) for e in tokenizer.encode_batch(documents, add_special_tokens=False)])
    print(len(documents), 'documents,', len(ids), 'tokens, vocabulary', tokenizer.get_vocab_size(), flush=True)
    model = Model().to('cuda')
    print(sum(p.numel() for p in model.parameters()) / 1e6, 'million parameters', flush=True)
    train(model, torch.from_numpy(ids).long().to('cuda'), seconds)
    round_to_bf16(model)
    model.eval()
    save(model, tokenizer, out)
    examine(model, tokenizer)


if __name__ == '__main__':
    main()
