"""Dense Qwen 2 and 3."""

import transformers as t

from case import COMMON, Case, older_rope
from mutations import CAUSAL, GQA, QK_NORM, ROPE, SILU, WINDOW, attentions


def qwen2():
    return t.Qwen2Config(
        **COMMON,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=1,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        tie_word_embeddings=True,
    )


def windows_from_0(model):
    model.config.layer_types = ["sliding_attention"] * model.config.num_hidden_layers
    for a in attentions(model):
        a.sliding_window = model.config.sliding_window
    for layer in model.model.layers:
        layer.attention_type = "sliding_attention"


CASES = {
    "qwen2": Case(
        config=qwen2,
        features={**ROPE, **WINDOW, "window from layer 0": windows_from_0, **GQA, **SILU, **CAUSAL},
        publish=older_rope,
    ),
    "qwen3": Case(
        config=lambda: t.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=False),
        features={**ROPE, **QK_NORM, **GQA, **SILU, **CAUSAL},
    ),
}
