"""Gemma."""

import transformers as t
from torch import nn

from case import COMMON, Case
from mutations import CAUSAL, GQA, QK_NORM, ROPE, WINDOW, activation, frequencies, no_embed_scale, scores, swap_local_and_global


def gemma3():
    return t.Gemma3TextConfig(
        **{**COMMON, "num_hidden_layers": 4},
        head_dim=32,
        query_pre_attn_scalar=20,
        sliding_window=20,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
        ),
        final_logit_softcapping=5.0,
        tie_word_embeddings=True,
    )


CASES = {
    "gemma3": Case(
        config=gemma3,
        features={
            **{k: v for k, v in ROPE.items() if "base" not in k},
            "linear scaling": frequencies(lambda name, f, c: f * 8 if name.startswith("full") else f),
            "local and global rope": swap_local_and_global,
            **WINDOW,
            **QK_NORM,
            **GQA,
            "query_pre_attn_scalar": scores(lambda s, a, i: a.head_dim**-0.5),
            "embedding scale": no_embed_scale,
            "final soft cap": lambda m: setattr(m.config, "final_logit_softcapping", None),
            "activation (ReLU)": activation(nn.ReLU()),
            **CAUSAL,
        },
        zero_centred=True,
    ),
}
