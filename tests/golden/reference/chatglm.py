"""ChatGLM-6B (GLM, Du et al. 2022, arXiv:2103.10360, section 2; GLM-130B, Zeng et al. 2022, arXiv:2210.02414, section 2.1): the
context sees itself whole, positions have two dimensions of which each turns one half of a head, residuals are those of
DeepNorm. Plain PyTorch, from the papers and the names and config of the public checkpoint; transformers has no class for it.

A prompt is a context, then gmask (or mask) where the answer belongs, then bos; the answer follows. The context, the mask
included, sees itself; bos and what follows are causal.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from reference.files import Config, Output, read_with, write  # noqa: F401 (write is for the cases)


def config(**more):
    return Config(
        architectures=["ChatGLMModel"],
        model_type="chatglm",
        vocab_size=131,
        hidden_size=48,
        inner_hidden_size=96,
        num_layers=3,
        num_attention_heads=4,
        layernorm_epsilon=1e-5,
        max_sequence_length=512,
        position_encoding_2d=True,
        bos_token_id=129,
        eos_token_id=130,
        mask_token_id=127,
        gmask_token_id=128,
        pad_token_id=3,
        pre_seq_len=None,
        prefix_projection=False,
        quantization_bit=0,
    ) | more


def rotate(x, positions, pairs):
    """`x [heads, n, d]` by whole-number positions `[n]`."""
    d = x.shape[-1]
    angle = positions.float()[:, None] / 10000.0 ** (torch.arange(0, d, 2).float() / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if pairs:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.query_key_value = nn.Linear(c["hidden_size"], 3 * c["hidden_size"])
        self.dense = nn.Linear(c["hidden_size"], c["hidden_size"])

    def forward(self, x, model):
        heads = model.config["num_attention_heads"]
        # The rows of a head's query, key and value stand together.
        q, k, v = self.query_key_value(x).view(len(x), heads, -1).transpose(0, 1).chunk(3, -1)
        if model.flat_rows:
            q, k, v = (t.reshape(len(x), heads, -1).transpose(0, 1) for t in self.query_key_value(x).chunk(3, -1))

        def turn(t):
            first, second = t.chunk(2, -1)
            place, block = model.positions
            return torch.cat([rotate(first, place, model.pairs), rotate(second, block, model.pairs)], -1)

        scores = (turn(q) @ turn(k).transpose(1, 2)).float() / math.sqrt(q.shape[-1]) * model.sharpness
        scores = scores.masked_fill(~model.visible, -math.inf)
        o = scores.softmax(-1).to(v.dtype) @ v
        return self.dense(o.transpose(0, 1).reshape(len(x), -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(c["hidden_size"], c["inner_hidden_size"])
        self.dense_4h_to_h = nn.Linear(c["inner_hidden_size"], c["hidden_size"])

    def forward(self, x, model):
        return self.dense_4h_to_h(model.act(self.dense_h_to_4h(x)))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(c["hidden_size"], c["layernorm_epsilon"])
        self.attention = Attention(c)
        self.post_attention_layernorm = nn.LayerNorm(c["hidden_size"], c["layernorm_epsilon"])
        self.mlp = Mlp(c)

    def forward(self, x, model):
        # DeepNorm: the residual is what was normed, times a constant.
        x = self.input_layernorm(x)
        x = model.alpha * x + self.attention(x, model)
        x = self.post_attention_layernorm(x)
        return model.alpha * x + self.mlp(x, model)


class Model(nn.Module):
    prefix, one_more, pairs, flat_rows, sharpness = True, 0, False, False, 1.0
    mask_place, block_begin = None, 1
    act = staticmethod(lambda x: F.gelu(x, approximate="tanh"))

    def __init__(self, c):
        super().__init__()
        self.config = c if isinstance(c, Config) else Config(c)
        self.alpha = math.sqrt(2 * c["num_layers"])
        self.transformer = nn.ModuleDict(
            dict(
                word_embeddings=nn.Embedding(c["vocab_size"], c["hidden_size"]),
                layers=nn.ModuleList([Layer(c) for _ in range(c["num_layers"])]),
                final_layernorm=nn.LayerNorm(c["hidden_size"], c["layernorm_epsilon"]),
            )
        )
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.eval()

    def read_prompt(self, ids):
        """Sets positions `[2][n]` and who sees whom `[n, n]`."""
        c, n = self.config, len(ids)
        context = ids.index(c["bos_token_id"])
        mask = c["gmask_token_id"] if c["gmask_token_id"] in ids else c["mask_token_id"]
        at = ids.index(mask) if self.mask_place is None else self.mask_place
        here = torch.arange(n)
        place = torch.where(here < context, here, at)
        block = (here - context + self.block_begin).clamp(min=0) * (here >= context)
        self.positions = place, block
        self.visible = here[None] <= here[:, None]
        if self.prefix:
            self.visible = self.visible | (here < context + self.one_more)[None]

    def forward(self, ids, use_cache=False):
        self.read_prompt(ids[0].tolist())
        x = self.transformer.word_embeddings(ids[0])
        for layer in self.transformer.layers:
            x = layer(x, self)
        return Output(self.lm_head(self.transformer.final_layernorm(x))[None])


def read(folder, dtype=torch.float32):
    return read_with(Model, folder, dtype)
