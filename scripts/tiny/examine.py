"""What a trained tiny model is worth: exam, next-token agreement, and agreement with an independent implementation."""
import torch
import torch.nn.functional as F

import peer
from config import CONFIG, prompt
from corpus import corpus, exam

ANSWER_TOKENS = 48


def answer_all(model, prompts, stop):
    """Greedy answers (token ids, without the stop token). Prompts of one length run together, so no padding is needed."""
    device = model.emb.weight.device
    answers = [[] for _ in prompts]
    by_length = {}
    for i, ids in enumerate(prompts):
        by_length.setdefault(len(ids), []).append(i)
    for group in by_length.values():
        x = torch.tensor([prompts[i] for i in group], device=device)
        done = set()
        for _ in range(ANSWER_TOKENS):
            following = model(x, mtp=False)[0][:, -1].argmax(-1)
            for i, token in zip(group, following.tolist()):
                if token in stop:
                    done.add(i)
                elif i not in done:
                    answers[i].append(token)
            if len(done) == len(group):
                break
            x = torch.cat((x, following[:, None]), 1)
    return answers


def take_exam(model, tokenizer):
    questions = exam()
    prompts = [tokenizer.encode(prompt(question), add_special_tokens=False).ids for question, _ in questions]
    stop = {tokenizer.token_to_id('<|endoftext|>'), tokenizer.token_to_id('<|user|>')}
    right = 0
    for (question, want), ids in zip(questions, answer_all(model, prompts, stop)):
        got = tokenizer.decode(ids)
        right += got == want
        if got != want:
            print(f'  {question!r}: {got!r} instead of {want!r}')
    print(f'exam: {right} of {len(questions)}')


def held_out(model, tokenizer):
    """Loss on documents of a seed that training never saw, and how often the next-token layer names the token that the head then names."""
    ids = tokenizer.encode(''.join(corpus(200, 12345)), add_special_tokens=False).ids
    tokens = torch.tensor(ids, device=model.emb.weight.device)[:8192].view(16, 512)
    logits, mtp_logits = model(tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    agree = (mtp_logits[:, :-1].argmax(-1) == logits[:, 1:-1].argmax(-1)).float().mean()
    print(f'held-out loss {loss.item():.4f}, next-token layer agrees {agree.item():.3f}')


def compare_with_peer(model, tokenizer):
    """The same weights in transformers' implementation must give the same logits."""
    device = model.emb.weight.device
    other = peer.load(peer.from_training(model), CONFIG).to(device)
    ids = tokenizer.encode(prompt('What is the capital of France?'), add_special_tokens=False).ids
    tokens = torch.tensor([ids], device=device)
    torch.set_float32_matmul_precision('highest')
    ours, theirs = model(tokens, mtp=False)[0], other(tokens).logits
    print(f'largest difference to transformers {(ours - theirs).abs().max().item():.2e}, logits up to {ours.abs().max().item():.1f}')


def examine(model, tokenizer):
    with torch.no_grad():
        take_exam(model, tokenizer)
        held_out(model, tokenizer)
        compare_with_peer(model, tokenizer)
