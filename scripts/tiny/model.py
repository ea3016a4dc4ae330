"""The tiny model in PyTorch: multi-head latent attention, mixture of experts, one next-token layer. Written for training, not for speed.

Attribute names are those of the weight files (w0.npz ...), which to_gguf.py reads.
"""
import torch
import torch.nn.functional as F
from torch import nn

from config import CONFIG as C


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + C['eps'])).to(x.dtype) * self.weight


def rope_tables(rows, device):
    frequencies = 1.0 / C['theta'] ** (torch.arange(0, C['rope'], 2, device=device).float() / C['rope'])
    angles = torch.outer(torch.arange(rows, device=device).float(), frequencies)
    return angles.cos(), angles.sin()


def rope(x, cos, sin):
    """x [batch, heads, rows, rope]; pairs are neighbours."""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, heads = C['hidden'], C['heads']
        self.q_a = linear(hidden, C['q_lora'])
        self.q_a_norm = Norm(C['q_lora'])
        self.q_b = linear(C['q_lora'], heads * (C['nope'] + C['rope']))
        self.kv_a = linear(hidden, C['kv_lora'] + C['rope'])
        self.kv_a_norm = Norm(C['kv_lora'])
        self.kv_b = linear(C['kv_lora'], heads * (C['nope'] + C['v']))
        self.o = linear(heads * C['v'], hidden)
        # The indexer of sparse attention. It gets no gradient: its top-k is as large as the context, so it never decides anything.
        self.iq = linear(C['q_lora'], C['idx_heads'] * C['idx_dim'])
        self.ik = linear(hidden, C['idx_dim'])
        self.ikn = nn.LayerNorm(C['idx_dim'], eps=1e-6)
        self.iw = linear(hidden, C['idx_heads'])

    def forward(self, x, cos, sin):
        batch, rows, _ = x.shape
        heads, nope, rope_dim, value_dim = C['heads'], C['nope'], C['rope'], C['v']
        q = self.q_b(self.q_a_norm(self.q_a(x))).view(batch, rows, heads, nope + rope_dim).transpose(1, 2)
        kv = self.kv_a(x)
        latent, k_rope = self.kv_a_norm(kv[..., :C['kv_lora']]), kv[..., C['kv_lora']:].unsqueeze(1)
        kv = self.kv_b(latent).view(batch, rows, heads, nope + value_dim).transpose(1, 2)
        q = torch.cat((q[..., :nope], rope(q[..., nope:], cos, sin)), -1)
        k = torch.cat((kv[..., :nope], rope(k_rope, cos, sin).expand(batch, heads, rows, rope_dim)), -1)
        v = F.pad(kv[..., nope:], (0, nope + rope_dim - value_dim))  # fused attention wants keys and values of one width
        mix = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=(nope + rope_dim) ** -.5)[..., :value_dim]
        return self.o(mix.transpose(1, 2).reshape(batch, rows, heads * value_dim))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = linear(C['hidden'], width)
        self.up = linear(C['hidden'], width)
        self.down = linear(width, C['hidden'])

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Moe(nn.Module):
    """Sigmoid routing with a selection bias, and one shared expert. Every expert computes every row: simple, and the model is small."""

    def __init__(self):
        super().__init__()
        hidden, experts, width = C['hidden'], C['experts'], C['ff']
        self.router = nn.Parameter(torch.randn(experts, hidden) * .02)
        self.register_buffer('bias', torch.zeros(experts))
        self.register_buffer('load', torch.zeros(experts))  # rows per expert since the bias was last adjusted
        self.gu = nn.Parameter(torch.randn(experts, 2 * width, hidden) * .02)  # gate, then up
        self.dn = nn.Parameter(torch.randn(experts, hidden, width) * .02)
        self.shared = Mlp(width)

    def forward(self, x):
        batch, rows, hidden = x.shape
        z = x.reshape(-1, hidden)
        p = torch.sigmoid(F.linear(z.float(), self.router.float()))
        chosen = (p + self.bias).topk(C['topk'], -1).indices
        share = torch.zeros_like(p).scatter(-1, chosen, p.gather(-1, chosen))
        share = share / (share.sum(-1, keepdim=True) + 1e-20) * C['scale']
        if self.training:
            self.load += (share > 0).float().sum(0).detach()
        a = torch.einsum('nh,efh->enf', z, self.gu.to(z.dtype))
        a = F.silu(a[..., :C['ff']]) * a[..., C['ff']:] * share.t().unsqueeze(-1).to(z.dtype)
        y = torch.einsum('enf,ehf->nh', a, self.dn.to(z.dtype))
        return (y + self.shared(z)).view(batch, rows, hidden)

    def balance(self, step):
        """Move the selection bias of every expert by one step towards an even load."""
        self.bias += step * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Block(nn.Module):
    def __init__(self, dense):
        super().__init__()
        self.n1 = Norm(C['hidden'])
        self.attn = Attention()
        self.n2 = Norm(C['hidden'])
        self.mlp = Mlp(C['dense_ff']) if dense else Moe()

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = C['hidden']
        self.emb = nn.Embedding(C['vocab'], hidden)
        self.head = linear(hidden, C['vocab'])
        self.norm = Norm(hidden)
        self.blocks = nn.ModuleList(Block(i < C['dense']) for i in range(C['layers']))
        # The next-token layer: from the final state at row t and the embedding of token t + 1 it predicts token t + 2.
        self.enorm = Norm(hidden)
        self.hnorm = Norm(hidden)
        self.eh = linear(2 * hidden, hidden)
        self.mtp = Block(False)
        self.snorm = Norm(hidden)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=.04 if module is self.eh else .02)
        nn.init.normal_(self.emb.weight, std=.02)

    def forward(self, tokens, mtp=True):
        """Logits of the next token, and of the one after it (None unless asked for)."""
        cos, sin = rope_tables(tokens.shape[1], tokens.device)
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        state = self.norm(x)
        logits = self.head(state)
        if not mtp:
            return logits, None
        joined = self.eh(torch.cat((self.enorm(self.emb(tokens[:, 1:])), self.hnorm(state[:, :-1])), -1))
        return logits, self.head(self.snorm(self.mtp(joined, cos[:-1], sin[:-1])))
