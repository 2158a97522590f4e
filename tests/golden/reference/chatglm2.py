"""ChatGLM2, ChatGLM3 and GLM-4-9B (GLM et al. 2024, arXiv:2406.12793, section 2): causal, RMSNorm, SwiGLU, few key heads (Shazeer
2019), rope on the first half of each head in adjacent pairs. Plain PyTorch, from the report and the names and configs of the
public checkpoints; transformers has the class under other names (`GlmForCausalLM`), with which this file compares itself when
run as a script.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from case import rewrite
from reference import files
from reference.files import Config, Output, read_with


def config(**more):
    """ChatGLM2-6B's fields."""
    return Config(
        architectures=["ChatGLMModel"],
        model_type="chatglm",
        padded_vocab_size=131,
        hidden_size=48,
        ffn_hidden_size=80,
        num_layers=3,
        num_attention_heads=4,
        kv_channels=12,
        multi_query_attention=True,
        multi_query_group_num=2,
        seq_length=512,
        layernorm_epsilon=1e-5,
        rmsnorm=True,
        add_bias_linear=False,
        add_qkv_bias=True,
        apply_query_key_layer_scaling=True,
        apply_residual_connection_post_layernorm=False,
        attention_softmax_in_fp32=True,
        bias_dropout_fusion=True,
        fp32_residual_connection=False,
        original_rope=True,
        post_layer_norm=True,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    ) | more


class RmsNorm(nn.Module):
    """Multiplied before it is rounded."""

    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        f = x.float()
        return (self.weight.float() * f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def norm(c):
    return (RmsNorm if c["rmsnorm"] else nn.LayerNorm)(c["hidden_size"], c["layernorm_epsilon"])


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.d = c["num_attention_heads"], c["kv_channels"]
        self.kv = c["multi_query_group_num"] if c["multi_query_attention"] else self.heads
        rows = (self.heads + 2 * self.kv) * self.d
        self.query_key_value = nn.Linear(c["hidden_size"], rows, bias=c["add_bias_linear"] or c["add_qkv_bias"])
        self.dense = nn.Linear(self.heads * self.d, c["hidden_size"], bias=c["add_bias_linear"])

    def forward(self, x, model):
        n, d = len(x), self.d
        rows = self.query_key_value(x)
        if model.config["multi_query_attention"] or model.flat_rows:
            q, k, v = rows.split([self.heads * d, self.kv * d, self.kv * d], -1)
        else:
            q, k, v = rows.view(n, self.heads, 3 * d).chunk(3, -1)
        q = q.reshape(n, self.heads, d).transpose(0, 1)
        k, v = (t.reshape(n, self.kv, d).transpose(0, 1) for t in (k, v))
        q, k = model.rotate(q), model.rotate(k)
        times = self.heads // self.kv
        spread = (lambda t: t.repeat(times, 1, 1)) if model.tiled else (lambda t: t.repeat_interleave(times, 0))
        k, v = spread(k), spread(v)
        scores = (q @ k.transpose(1, 2)).float() / math.sqrt(d) * model.sharpness
        if model.causal:
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        o = scores.softmax(-1).to(v.dtype) @ v
        return self.dense(o.transpose(0, 1).reshape(n, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(c["hidden_size"], 2 * c["ffn_hidden_size"], bias=c["add_bias_linear"])
        self.dense_4h_to_h = nn.Linear(c["ffn_hidden_size"], c["hidden_size"], bias=c["add_bias_linear"])

    def forward(self, x, model):
        gate, up = self.dense_h_to_4h(x).chunk(2, -1)
        if model.swapped:
            gate, up = up, gate
        return self.dense_4h_to_h(model.act(gate) * up)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = norm(c)
        self.self_attention = Attention(c)
        self.post_attention_layernorm = norm(c)
        self.mlp = Mlp(c)

    def forward(self, x, model):
        from_normed = model.config["apply_residual_connection_post_layernorm"]
        h = self.input_layernorm(x)
        x = (h if from_normed else x) + self.self_attention(h, model)
        h = self.post_attention_layernorm(x)
        return (h if from_normed else x) + self.mlp(h, model)


class Model(nn.Module):
    causal, swapped, tiled, flat_rows, sharpness, act = True, False, False, False, 1.0, staticmethod(F.silu)
    adjacent, share = True, 0.5

    def __init__(self, c):
        super().__init__()
        self.config = c = c if isinstance(c, Config) else Config(c)
        c.setdefault("vocab_size", c["padded_vocab_size"])
        self.theta = 10000.0 * c.get("rope_ratio", 1)
        encoder = dict(layers=nn.ModuleList([Layer(c) for _ in range(c["num_layers"])]))
        if c["post_layer_norm"]:
            encoder["final_layernorm"] = norm(c)
        self.transformer = nn.ModuleDict(
            dict(
                embedding=nn.ModuleDict(dict(word_embeddings=nn.Embedding(c["padded_vocab_size"], c["hidden_size"]))),
                encoder=nn.ModuleDict(encoder),
                output_layer=nn.Linear(c["hidden_size"], c["padded_vocab_size"], bias=c["add_bias_linear"]),
            )
        )
        self.eval()

    def rotate(self, x):
        """`x [heads, n, d]`: the first half of each head."""
        n, d = x.shape[1], int(x.shape[-1] * self.share)
        angle = torch.arange(n).float()[:, None] / self.theta ** (torch.arange(0, d, 2).float() / d)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        turned = x[..., :d]
        if self.adjacent:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, x[..., d:]], -1)

    def forward(self, ids, use_cache=False):
        t = self.transformer
        x = t.embedding.word_embeddings(ids[0])
        for layer in t.encoder.layers:
            x = layer(x, self)
        if "final_layernorm" in t.encoder:
            x = t.encoder.final_layernorm(x)
        return Output(t.output_layer(x)[None])


def write(model, folder):
    files.write(model, folder)
    rewrite(folder, lambda c: {k: v for k, v in c.items() if k != "vocab_size"})


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)


@torch.no_grad()
def compare_with_glm():
    import transformers as t

    torch.manual_seed(0)
    c = config(rope_ratio=5, kv_channels=16)
    ours = Model(c)
    theirs = t.GlmForCausalLM(
        t.GlmConfig(
            vocab_size=131, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, rms_norm_eps=1e-5, attention_bias=True, tie_word_embeddings=False, pad_token_id=0,
            rope_parameters=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5),
        )
    ).eval()
    names = {"transformer.embedding.word_embeddings": "model.embed_tokens", "transformer.output_layer": "lm_head"}
    names |= {"transformer.encoder.final_layernorm": "model.norm", "transformer.encoder": "model", "self_attention.dense": "self_attn.o_proj"}
    names |= {"mlp.dense_h_to_4h": "mlp.gate_up_proj", "mlp.dense_4h_to_h": "mlp.down_proj"}
    weights = {}
    for name, w in ours.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        if "query_key_value" in name:
            for part, rows in zip("qkv", w.split([64, 32, 32])):
                weights[name.replace("self_attention.query_key_value", f"self_attn.{part}_proj")] = rows
        else:
            weights[name] = w
    theirs.load_state_dict(weights)
    ids = torch.randint(0, 131, (1, 50))
    a, b = theirs(ids).logits, ours(ids).logits
    print("ChatGLM2 against Glm:", (a - b).abs().max().item(), "of", a.abs().max().item())
    assert (a - b).abs().max() < 1e-5 * a.abs().max()


if __name__ == "__main__":
    compare_with_glm()
