"""SmolLM 3."""

import transformers as t

from case import Case, rewrite, small
from mutations import CAUSAL, GQA, ROPE, SILU, WINDOW, config_field, each


def config(**more):
    rope = dict(rope_type="default", rope_theta=5000000.0)
    return lambda: t.SmolLM3Config(**small(), rope_parameters=rope, **more)


def rope_everywhere(attention):
    attention.use_rope = 1


def by_interval(folder):
    def change(c):
        del c["no_rope_layers"], c["layer_types"]

    rewrite(folder, change)


COMMON = {**ROPE, "layers without rope": each("Attention", rope_everywhere), **GQA, **SILU, **CAUSAL}

CASES = {
    "smollm3": Case(
        config=config(no_rope_layer_interval=2, tie_word_embeddings=True), features=COMMON, publish=by_interval
    ),
    "smollm3-window": Case(
        config=config(
            no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=20, tie_word_embeddings=False, attention_bias=True
        ),
        features={**COMMON, **WINDOW, "whole layers": config_field(layer_types=["sliding_attention"] * 3)},
        # q · b_k is the same for every key where nothing rotates, so softmax does not see it.
        inert=("layers.0.self_attn.k_proj.bias", "layers.2.self_attn.k_proj.bias"),
    ),
}
