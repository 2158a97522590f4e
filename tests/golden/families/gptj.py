"""GPT-J."""

import sys

import torch
import transformers as t
from torch import nn

from case import Case
from mutations import NO_MASK, activation, attentions, patched


def config():
    return t.GPTJConfig(
        vocab_size=131, n_embd=64, n_layer=2, n_head=4, n_positions=128, n_inner=80, rotary_dim=8, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager", dtype="float32",
    )


def halves(tensor, sin, cos):
    sin, cos = (torch.cat([x, x], -1)[:, :, None] for x in (sin, cos))
    a, b = tensor.chunk(2, -1)
    return tensor * cos + torch.cat([-b, a], -1) * sin


def rotate_all(model):
    for a in attentions(model):
        a.rotary_dim = a.head_dim
        a.embed_positions = sys.modules[type(model).__module__].create_sinusoidal_positions(128, a.head_dim)


def unscaled(model):
    for a in attentions(model):
        a.scale_attn = 1.0


def sequential(model):
    for block in model.transformer.h:

        def forward(x, block=block, **kwargs):
            x = x + block.attn(hidden_states=block.ln_1(x), **kwargs)[0]
            return x + block.mlp(block.ln_1(x)), None

        block.forward = forward


CASES = {
    "gptj": Case(
        config=config,
        features={
            "rope": patched("apply_rotary_pos_emb", lambda was: lambda x, sin, cos: x),
            "rope pairs": patched("apply_rotary_pos_emb", lambda was: halves),
            "rotary share": rotate_all,
            "score scale": unscaled,
            "parallel residual": sequential,
            "activation (ReLU)": activation(nn.ReLU()),
            **NO_MASK,
        },
    ),
}
