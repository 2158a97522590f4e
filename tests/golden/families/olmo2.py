"""OLMo 2."""

import torch
import transformers as t

from case import Case, small
from mutations import CAUSAL, GQA, QK_NORM, ROPE, SILU, each


def per_head(attention):
    """Q and K divided by the root mean square of each head instead of that of all."""
    for norm in (attention.q_norm, attention.k_norm):

        def forward(x, norm=norm):
            heads = x.unflatten(-1, (-1, attention.head_dim))
            return (heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)).flatten(-2) * norm.weight

        norm.forward = forward


def norm_before(layer):
    def forward(x, **kwargs):
        x = x + layer.self_attn(layer.post_attention_layernorm(x), **kwargs)[0]
        return x + layer.mlp(layer.post_feedforward_layernorm(x))

    layer.forward = forward


CASES = {
    "olmo2": Case(
        config=lambda: t.Olmo2Config(**small(), rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
        features={
            **ROPE,
            **GQA,
            **QK_NORM,
            "norms over all heads": each("Attention", per_head),
            "norms after": each("DecoderLayer", norm_before),
            **SILU,
            **CAUSAL,
        },
    ),
}
