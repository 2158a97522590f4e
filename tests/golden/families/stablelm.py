"""StableLM."""

import transformers as t

from case import Case, older_rope, small
from families.phi import one_after_the_other
from mutations import CAUSAL, GQA, ROPE, SILU, each, no_qk_norm, whole_heads_rotate


def config(partial, **more):
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=partial)
    return lambda: t.StableLmConfig(**small(**more), rope_parameters=rope)


def one_norm(attention):
    """The first head's for all heads."""
    for norms in (attention.q_layernorm.norms, attention.k_layernorm.norms):
        for norm in norms:
            norm.weight.copy_(norms[0].weight)


COMMON = {**ROPE, "partial rope": whole_heads_rotate, **SILU, **CAUSAL}

CASES = {
    # As in 1.6B and 3B.
    "stablelm": Case(
        config=config(0.25, num_attention_heads=3, num_key_value_heads=3, use_qkv_bias=True), features=COMMON, publish=older_rope
    ),
    # As in 12B, but that a quarter of so small a head would be one frequency.
    "stablelm-12b": Case(
        config=config(0.5, num_attention_heads=6, qk_layernorm=True, use_parallel_residual=True),
        features={
            **COMMON,
            **GQA,
            "norm of Q": no_qk_norm("q_layernorm"),
            "norm of K": no_qk_norm("k_layernorm"),
            "norms per head": each("Attention", one_norm),
            "side by side": one_after_the_other,
        },
    ),
}
