"""Baichuan and Baichuan 2 (Yang et al. 2023, arXiv:2309.10305, section 2): a Llama with one matrix for Q, K and V; the 7B models
rotate, the 13B ones have ALiBi (Press et al. 2021); Baichuan 2 divides each row of its head by the row's length ("NormHead").
Plain PyTorch, from the report and the names and configs of the public checkpoints; transformers has no class for it. Run as a
script, it compares the one that rotates with transformers' Llama.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from reference.files import Config, Output, RmsNorm, read_with, rotate, write  # noqa: F401 (write is for the cases)


def config(size, generation):
    """As published, but small. What tells them apart: the 7B configs have `max_position_embeddings`, the 13B ones
    `model_max_length` alone; Baichuan 2 has `z_loss_weight`."""
    c = Config(
        architectures=["BaiChuanForCausalLM" if (size, generation) == (7, 1) else "BaichuanForCausalLM"],
        model_type="baichuan",
        vocab_size=131,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,  # no power of two, like the 40 of 13B
        rms_norm_eps=1e-6,
        hidden_act="silu",
        model_max_length=512,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    if size == 7:
        c["max_position_embeddings"] = 512
    if generation == 2:
        c["z_loss_weight"] = 0
    return c


def slopes(heads):
    """Press et al.: for a power of two 2^(-8 i / n); the rest from every other one of twice as many."""
    series = lambda n: [2.0 ** (-8.0 * i / n) for i in range(1, n + 1)]
    whole = 2 ** math.floor(math.log2(heads))
    return torch.tensor(series(whole) + series(2 * whole)[0::2][: heads - whole])


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.W_pack = nn.Linear(c.hidden_size, 3 * c.hidden_size, bias=False)
        self.o_proj = nn.Linear(c.hidden_size, c.hidden_size, bias=False)

    def forward(self, x, model):
        n, heads = len(x), model.config.num_attention_heads
        packed = self.W_pack(x)
        q, k, v = packed.chunk(3, -1) if not model.by_head else packed.view(n, heads, 3, -1).unbind(2)
        q, k, v = (t.reshape(n, heads, -1).transpose(0, 1) for t in (q, k, v))
        if model.rotates:
            q, k = rotate(q, model.theta), rotate(k, model.theta)
        scores = (q @ k.transpose(1, 2)).float() / math.sqrt(q.shape[-1]) * model.sharpness
        distance = torch.arange(n)[None] - torch.arange(n)[:, None]
        if model.slopes is not None:
            scores = scores + model.slopes[:, None, None] * distance
        if model.causal:
            scores = scores.masked_fill(distance > 0, -math.inf)
        o = scores.softmax(-1).to(v.dtype) @ v
        return self.o_proj(o.transpose(0, 1).reshape(n, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)

    def forward(self, x, model):
        return self.down_proj(model.act(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = Mlp(c)
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, model):
        x = x + self.self_attn(self.input_layernorm(x), model)
        return x + self.mlp(self.post_attention_layernorm(x), model)


class Model(nn.Module):
    causal, by_head, theta, sharpness, act = True, False, 10000.0, 1.0, staticmethod(F.silu)

    def __init__(self, c):
        super().__init__()
        self.config = c
        self.rotates = "max_position_embeddings" in c
        self.slopes = None if self.rotates else slopes(c.num_attention_heads)
        self.norm_head = "z_loss_weight" in c
        self.model = nn.ModuleDict(
            dict(
                embed_tokens=nn.Embedding(c.vocab_size, c.hidden_size),
                layers=nn.ModuleList([Layer(c) for _ in range(c.num_hidden_layers)]),
                norm=RmsNorm(c.hidden_size, c.rms_norm_eps),
            )
        )
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.eval()

    def forward(self, ids, use_cache=False):
        x = self.model.embed_tokens(ids[0])
        for layer in self.model.layers:
            x = layer(x, self)
        head = F.normalize(self.lm_head.weight) if self.norm_head else self.lm_head.weight
        return Output(F.linear(self.model.norm(x), head)[None])


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)


@torch.no_grad()
def compare_with_llama():
    import transformers as t

    torch.manual_seed(0)
    c = config(7, 1)
    ours = Model(c)
    sizes = {k: c[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps")}
    theirs = t.LlamaForCausalLM(t.LlamaConfig(**sizes)).eval()
    weights = ours.state_dict()
    for name in [n for n in weights if "W_pack" in n]:
        for part, rows in zip("qkv", weights.pop(name).chunk(3)):
            weights[name.replace("W_pack", f"{part}_proj")] = rows
    theirs.load_state_dict(weights)
    ids = torch.randint(0, 131, (1, 50))
    a, b = theirs(ids).logits, ours(ids).logits
    print("Baichuan 7B against Llama:", (a - b).abs().max().item(), "of", a.abs().max().item())
    assert (a - b).abs().max() < 1e-5 * a.abs().max()


if __name__ == "__main__":
    compare_with_llama()
