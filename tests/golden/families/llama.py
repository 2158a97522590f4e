"""Llama and Mistral."""

import transformers as t

from case import COMMON, Case, older_rope
from mutations import CAUSAL, GQA, ROPE, SILU, WINDOW, frequencies, plain_frequencies


def rope3():
    rope = dict(
        rope_type="llama3",
        rope_theta=5000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
    return t.LlamaConfig(
        **COMMON, head_dim=32, attention_bias=True, mlp_bias=True, rope_parameters=rope, tie_word_embeddings=True
    )


CASES = {
    "llama": Case(
        config=lambda: t.LlamaConfig(**COMMON, tie_word_embeddings=False),
        features={**ROPE, **GQA, **SILU, **CAUSAL},
    ),
    "llama-rope3": Case(
        config=rope3,
        features={**ROPE, "llama3 scaling": frequencies(plain_frequencies), **GQA, **SILU, **CAUSAL},
        publish=older_rope,
    ),
    "mistral": Case(
        config=lambda: t.MistralConfig(**COMMON, head_dim=32, sliding_window=24, tie_word_embeddings=False),
        features={**ROPE, **WINDOW, **GQA, **SILU, **CAUSAL},
    ),
}
