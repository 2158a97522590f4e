"""MPT with what transformers' class leaves out, written from llm-foundry's public configuration: norms of Q and K, the maximum of
ALiBi's exponents, biases, learned positions instead of ALiBi, grouped key heads, scaled logits.

The config is the dict of config.json. Run as a script, it compares itself with transformers where both agree on the model.
"""

import json
import math
import types

import torch
from safetensors.torch import load_file, save_file
from torch import nn


def slopes(heads, largest):
    """One per head: 2^(-largest · i / n) for i = 1 … n, n the next power of two; if that is more than the heads, the even i first."""
    n = 1
    while n < heads:
        n *= 2
    order = list(range(1, n + 1)) if n == heads else [*range(2, n + 1, 2), *range(1, n + 1, 2)]
    return torch.tensor([2.0 ** (-largest * i / n) for i in order[:heads]])


class Attention(nn.Module):
    def __init__(self, c, a, bias):
        super().__init__()
        width, self.heads = c["d_model"], c["n_heads"]
        self.d = width // self.heads
        self.kv_heads = {"multiquery_attention": 1, "grouped_query_attention": a.get("kv_n_heads")}.get(a.get("attn_type"), self.heads)
        kv = self.kv_heads * self.d
        self.sizes = [width, kv, kv]
        self.Wqkv = nn.Linear(width, sum(self.sizes), bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)
        if a.get("qk_ln"):
            self.q_ln, self.k_ln = nn.LayerNorm(width, bias=bias), nn.LayerNorm(kv, bias=bias)
        self.clip, self.scale = a.get("clip_qkv"), a.get("softmax_scale") or 1 / math.sqrt(self.d)
        self.slopes = slopes(self.heads, a.get("alibi_bias_max", 8)) if a.get("alibi", True) else torch.zeros(self.heads)

    def forward(self, x):
        batch, n, width = x.shape
        qkv = self.Wqkv(x)
        if self.clip:
            qkv = qkv.clamp(-self.clip, self.clip)
        q, k, v = qkv.split(self.sizes, -1)
        if hasattr(self, "q_ln"):
            q, k = self.q_ln(q), self.k_ln(k)
        by_head = lambda t, heads: t.view(batch, n, heads, self.d).transpose(1, 2)
        q, k, v = by_head(q, self.heads), by_head(k, self.kv_heads), by_head(v, self.kv_heads)
        times = self.heads // self.kv_heads
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        distance = torch.arange(n)[None] - torch.arange(n)[:, None]
        scores = (q @ k.transpose(-1, -2)).float() * self.scale + self.slopes[:, None, None] * distance
        if not getattr(self, "sees_all", False):
            scores = scores.masked_fill(distance > 0, -math.inf)
        o = scores.softmax(-1).to(v.dtype) @ v
        return self.out_proj(o.transpose(1, 2).reshape(batch, n, width))


class Block(nn.Module):
    def __init__(self, c, a, bias):
        super().__init__()
        width, ffn = c["d_model"], int(c["d_model"] * c.get("expansion_ratio", 4))
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attn = Attention(c, a, bias)
        self.ffn = nn.Module()
        self.ffn.up_proj, self.ffn.down_proj = nn.Linear(width, ffn, bias=bias), nn.Linear(ffn, width, bias=bias)
        self.act = nn.GELU()

    def forward(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.ffn.down_proj(self.act(self.ffn.up_proj(self.norm_2(x))))


class Mpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        a, bias = c.get("attn_config", {}), not c.get("no_bias", True)
        self.values, self.config = c, types.SimpleNamespace(vocab_size=c["vocab_size"])
        self.transformer = t = nn.Module()
        t.wte = nn.Embedding(c["vocab_size"], c["d_model"])
        if not a.get("alibi", True):
            t.wpe = nn.Embedding(c["max_seq_len"], c["d_model"])
        t.blocks = nn.ModuleList(Block(c, a, bias) for _ in range(c["n_layers"]))
        t.norm_f = nn.LayerNorm(c["d_model"], bias=bias)
        self.logit_scale = c.get("logit_scale") or 1.0
        if self.logit_scale == "inv_sqrt_d_model":
            self.logit_scale = 1 / math.sqrt(c["d_model"])

    def forward(self, ids, use_cache=False):
        t = self.transformer
        x = t.wte(ids)
        if hasattr(t, "wpe"):
            x = x + t.wpe(torch.arange(ids.shape[1]))
        for block in t.blocks:
            x = block(x)
        return types.SimpleNamespace(logits=t.norm_f(x) @ t.wte.weight.T * self.logit_scale)


def write(model, folder):
    (folder / "config.json").write_text(json.dumps(model.values, indent=2) + "\n")
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def read(folder, dtype):
    model = Mpt(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype).eval()


if __name__ == "__main__":
    import transformers

    attn = dict(clip_qkv=0.3, softmax_scale=0.5)
    sizes = dict(vocab_size=131, d_model=48, n_heads=6, n_layers=2, max_seq_len=128)
    theirs = transformers.MptForCausalLM(transformers.MptConfig(**sizes, attn_config=attn)).float().eval()
    ours = Mpt({**sizes, "attn_config": attn})
    weights = {k: v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    ours.load_state_dict({k: v * 3 for k, v in weights.items()})
    theirs.load_state_dict({k: v * 3 for k, v in weights.items()}, strict=False)
    ids = torch.randint(0, 131, (1, 50))
    with torch.no_grad():
        a, b = theirs(ids).logits, ours(ids).logits
    print(a.std().item(), (a - b).abs().max().item())
    assert (a - b).abs().max() < 1e-5 * a.abs().max()
