"""InternLM 2 (Cai et al. 2024, arXiv:2403.17297, section 2.2): a Llama whose Wq, Wk and Wv stand in one matrix, by key head:
the query heads that share it, the key, the value. Plain PyTorch, from the report and the names and config of the public
checkpoints; transformers has no class for it."""

import torch
import torch.nn.functional as F
from torch import nn

from reference.files import Config, Output, RmsNorm, read_with, rotate, write


def config():
    return Config(
        architectures=["InternLM2ForCausalLM"],
        model_type="internlm2",
        vocab_size=131,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_theta=1000000,
        rope_scaling=dict(type="dynamic", factor=2.0),  # which begins beyond 512 tokens
        hidden_act="silu",
        bias=False,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size // c.num_attention_heads
        self.wqkv = nn.Linear(c.hidden_size, (c.num_attention_heads + 2 * c.num_key_value_heads) * d, bias=False)
        self.wo = nn.Linear(c.hidden_size, c.hidden_size, bias=False)

    def forward(self, x, model):
        c = model.config
        n, kv = len(x), c.num_key_value_heads
        share = c.num_attention_heads // kv
        # [kv heads, share queries + key + value, d]
        groups = self.wqkv(x).view(n, kv, share + 2, -1)
        q, k, v = groups[:, :, :share].flatten(1, 2), groups[:, :, share], groups[:, :, share + 1]
        if model.stacked:
            flat = self.wqkv(x).view(n, kv * (share + 2), -1)
            q, k, v = flat.split([kv * share, kv, kv], 1)
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        if model.rotates:
            q, k = rotate(q, c.rope_theta), rotate(k, c.rope_theta)
        k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=model.causal)
        return self.wo(o.transpose(0, 1).reshape(n, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w1 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.w2 = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.w3 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)

    def forward(self, x, model):
        a, b = (self.w3, self.w1) if model.swapped else (self.w1, self.w3)
        return self.w2(F.silu(a(x)) * b(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention_norm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.attention = Attention(c)
        self.ffn_norm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.feed_forward = FeedForward(c)

    def forward(self, x, model):
        x = x + self.attention(self.attention_norm(x), model)
        return x + self.feed_forward(self.ffn_norm(x), model)


class Model(nn.Module):
    rotates, stacked, swapped, causal = True, False, False, True

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = nn.ModuleDict(
            dict(
                tok_embeddings=nn.Embedding(c.vocab_size, c.hidden_size),
                layers=nn.ModuleList([Layer(c) for _ in range(c.num_hidden_layers)]),
                norm=RmsNorm(c.hidden_size, c.rms_norm_eps),
            )
        )
        self.output = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.eval()

    def forward(self, ids, use_cache=False):
        x = self.model.tok_embeddings(ids[0])
        for layer in self.model.layers:
            x = layer(x, self)
        return Output(self.output(self.model.norm(x))[None])


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)
