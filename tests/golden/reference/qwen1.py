"""Qwen, the first of its name (Bai et al. 2023, arXiv:2309.16609, section 2.3): biased Q, K and V in one matrix, a base of rope
that grows in steps with the length of the prompt ("dynamic NTK-aware interpolation"), queries that grow with the logarithm of
their position ("LogN-Scaling"). Plain PyTorch, from the report and the names and configs of the public checkpoints;
transformers has no class for it. Run as a script, it compares itself with transformers' Qwen 2 where both agree on the model.

The report's model computes a prompt at once: the base is that of the prompt's length, which here is the length of what it is
given. Generated tokens keep it, so the cases' prompts and outputs stay within one step of the base.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from reference.files import Config, Output, RmsNorm, read_with, write  # noqa: F401 (write is for the cases)


def config(**more):
    return Config(
        architectures=["QWenLMHeadModel"],
        model_type="qwen",
        vocab_size=131,
        hidden_size=48,
        intermediate_size=160,  # of gate and up together
        num_hidden_layers=3,
        num_attention_heads=4,
        kv_channels=12,
        layer_norm_epsilon=1e-6,
        max_position_embeddings=512,
        seq_length=512,
        rotary_emb_base=10000,
        rotary_pct=1.0,
        scale_attn_weights=True,
        no_bias=True,
        use_dynamic_ntk=True,
        use_logn_attn=True,
        tie_word_embeddings=False,
        bf16=False,
        fp16=False,
        fp32=True,
    ) | more


def alpha(length, trained):
    """1 up to the trained length, 3 up to twice it, 7 up to four times, …"""
    return max(2 ** math.ceil(math.log2(length / trained) + 1) - 1, 1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["num_attention_heads"] * c["kv_channels"]
        self.c_attn = nn.Linear(c["hidden_size"], 3 * width)
        self.c_proj = nn.Linear(width, c["hidden_size"], bias=not c["no_bias"])

    def forward(self, x, model):
        c, n = model.config, len(x)
        parts = self.c_attn(x).chunk(3, -1)
        q, k, v = (t.view(n, c["num_attention_heads"], -1).transpose(0, 1) for t in parts)
        q, k = model.rotate(q), model.rotate(k)
        if c["use_logn_attn"]:
            places = torch.arange(1, n + 1).double()
            growth = (places.log() / math.log(c["seq_length"])).clamp(min=1)
            q = q * growth[:, None].to(q.dtype)
        scores = (q @ k.transpose(1, 2)).float() / math.sqrt(q.shape[-1]) * model.sharpness
        if model.causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        o = scores.softmax(-1).to(v.dtype) @ v
        return self.c_proj(o.transpose(0, 1).reshape(n, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        half = c["intermediate_size"] // 2
        self.w1 = nn.Linear(c["hidden_size"], half, bias=not c["no_bias"])
        self.w2 = nn.Linear(c["hidden_size"], half, bias=not c["no_bias"])
        self.c_proj = nn.Linear(half, c["hidden_size"], bias=not c["no_bias"])

    def forward(self, x, model):
        up, gate = (self.w2, self.w1) if model.swapped else (self.w1, self.w2)
        return self.c_proj(up(x) * model.act(gate(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = RmsNorm(c["hidden_size"], c["layer_norm_epsilon"])
        self.attn = Attention(c)
        self.ln_2 = RmsNorm(c["hidden_size"], c["layer_norm_epsilon"])
        self.mlp = Mlp(c)

    def forward(self, x, model):
        x = x + self.attn(self.ln_1(x), model)
        return x + self.mlp(self.ln_2(x), model)


class Model(nn.Module):
    causal, swapped, paired, sharpness, act = True, False, False, 1.0, staticmethod(F.silu)

    def __init__(self, c):
        super().__init__()
        self.config = c if isinstance(c, Config) else Config(c)
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(c["vocab_size"], c["hidden_size"]),
                h=nn.ModuleList([Block(c) for _ in range(c["num_hidden_layers"])]),
                ln_f=RmsNorm(c["hidden_size"], c["layer_norm_epsilon"]),
            )
        )
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.eval()

    def rotate(self, x):
        """`x [heads, n, d]`: the first `rotary_pct` of each head, i paired with i + half of them."""
        c, n = self.config, x.shape[1]
        d = int(x.shape[-1] * c["rotary_pct"])
        base = c["rotary_emb_base"]
        if c["use_dynamic_ntk"]:
            base = base * alpha(n, c["seq_length"]) ** (d / (d - 2))
        angle = torch.arange(n).float()[:, None] / base ** (torch.arange(0, d, 2).float() / d)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        turned = x[..., :d]
        if self.paired:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, x[..., d:]], -1)

    def forward(self, ids, use_cache=False):
        x = self.transformer.wte(ids[0])
        for block in self.transformer.h:
            x = block(x, self)
        return Output(self.lm_head(self.transformer.ln_f(x))[None])


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)


@torch.no_grad()
def compare_with_qwen2():
    import transformers as t

    torch.manual_seed(0)
    c = config()
    ours = Model(c)
    theirs = t.Qwen2ForCausalLM(
        t.Qwen2Config(
            vocab_size=131, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
            rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        )
    ).eval()
    names = {"transformer.wte": "model.embed_tokens", "transformer.ln_f": "model.norm", "transformer.h": "model.layers"}
    names |= {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "attn.c_proj": "self_attn.o_proj"}
    names |= {"mlp.w1": "mlp.up_proj", "mlp.w2": "mlp.gate_proj", "mlp.c_proj": "mlp.down_proj"}
    weights = {}
    for name, w in ours.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "attn.c_attn" in name:
            for part, rows in zip("qkv", w.chunk(3)):
                weights[name.replace("attn.c_attn", f"self_attn.{part}_proj")] = rows
        else:
            weights[name] = w
    theirs.load_state_dict(weights)
    ids = torch.randint(0, 131, (1, 50))
    a, b = theirs(ids).logits, ours(ids).logits
    print("Qwen against Qwen 2:", (a - b).abs().max().item(), "of", a.abs().max().item())
    assert (a - b).abs().max() < 1e-5 * a.abs().max()


if __name__ == "__main__":
    compare_with_qwen2()
