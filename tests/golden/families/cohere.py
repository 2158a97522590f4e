"""Command R."""

import transformers as t

from case import Case, older_rope, small
from families.phi import one_after_the_other
from mutations import CAUSAL, GQA, QK_NORM, ROPE, SILU, WINDOW, config_field, each, halves, set_attr


def rope(theta):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=theta))


def cohere2():
    return t.Cohere2Config(
        **small(),
        **rope(50000.0),
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        logit_scale=0.25,
    )


def rope_everywhere(attention):
    # This is what rotates; the mask has its window from the config.
    attention.sliding_window = attention.config.sliding_window


def mean_kept(norm):
    """RMS instead of layer norm."""
    import torch

    def forward(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight

    norm.forward = forward


COMMON = {
    **{k: v for k, v in ROPE.items() if "pairs" not in k},
    "rope pairs": halves,
    **GQA,
    **SILU,
    "mean of layer norms": each("LayerNorm", mean_kept),
    "logit_scale": set_attr("logit_scale", 1.0),
    "side by side": one_after_the_other,
    **CAUSAL,
}

CASES = {
    "cohere": Case(config=lambda: t.CohereConfig(**small(), **rope(8000000.0), logit_scale=0.25, attention_bias=True), features=COMMON),
    # As in Command R+.
    "cohere-qk-norm": Case(
        config=lambda: t.CohereConfig(**small(), **rope(75000.0), logit_scale=0.5, use_qk_norm=True),
        features={**COMMON, **QK_NORM},
        publish=older_rope,
    ),
    "cohere2": Case(
        config=cohere2,
        features={
            **COMMON,
            **WINDOW,
            "no rope in whole layers": each("Attention", rope_everywhere),
            "whole layers": config_field(layer_types=["sliding_attention"] * 3),
        },
    ),
}
