"""MiniCPM (Hu et al. 2024, arXiv:2404.06395, appendix A.1): a Llama whose embeddings, residuals and logits are scaled. Plain
PyTorch, from the paper and the fields of the public config; transformers has no class for it."""

import torch
import torch.nn.functional as F
from torch import nn

from reference.files import Config, Output, RmsNorm, read_with, rotate, write


def config():
    return Config(
        architectures=["MiniCPMForCausalLM"],
        model_type="minicpm",
        vocab_size=131,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        scale_emb=3,
        scale_depth=1.1,
        dim_model_base=16,
        bos_token_id=1,
        eos_token_id=2,
    )


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size // c.num_attention_heads
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * d, c.hidden_size, bias=False)

    def forward(self, x, model):
        c = model.config
        heads, kv, n = c.num_attention_heads, c.num_key_value_heads, len(x)
        q, k, v = (f(x).view(n, h, -1).transpose(0, 1) for f, h in ((self.q_proj, heads), (self.k_proj, kv), (self.v_proj, kv)))
        if model.rotates:
            q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        share = (lambda t: t.repeat(heads // kv, 1, 1)) if model.tiled else (lambda t: t.repeat_interleave(heads // kv, 0))
        o = F.scaled_dot_product_attention(q, share(k), share(v), is_causal=model.causal)
        return self.o_proj(o.transpose(0, 1).reshape(n, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c)

    def forward(self, x, model):
        by = model.config.scale_depth / model.config.num_hidden_layers**0.5
        x = x + self.self_attn(self.input_layernorm(x), model) * by
        return x + self.mlp(self.post_attention_layernorm(x)) * by


class Model(nn.Module):
    rotates, tiled, causal = True, False, True

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = nn.ModuleDict(
            dict(
                embed_tokens=nn.Embedding(c.vocab_size, c.hidden_size),
                layers=nn.ModuleList([Layer(c) for _ in range(c.num_hidden_layers)]),
                norm=RmsNorm(c.hidden_size, c.rms_norm_eps),
            )
        )
        self.eval()

    def forward(self, ids, use_cache=False):
        c, m = self.config, self.model
        x = m.embed_tokens(ids[0]) * c.scale_emb
        for layer in m.layers:
            x = layer(x, self)
        x = m.norm(x) / (c.hidden_size / c.dim_model_base)
        return Output((x @ m.embed_tokens.weight.T)[None])


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)
