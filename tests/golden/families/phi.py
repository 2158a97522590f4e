"""Phi 1 to 2, and Phi 3 to 4."""

import transformers as t
from torch import nn

from case import Case, older_rope, rewrite, small
from make import greedy
from mutations import (
    CAUSAL, GQA, ROPE, SILU, WINDOW, activation, each, rope_config, scores, whole_heads_rotate,
)

SHORT = [1.0, 1.1, 1.2, 1.5, 1.9, 2.5]
LONG = [1.0, 1.3, 2.0, 4.0, 9.0, 20.0]


def phi(qk_norm):
    heads = dict(num_attention_heads=4, num_key_value_heads=2) if qk_norm else dict(num_attention_heads=3, num_key_value_heads=3)
    rope = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5 if qk_norm else 0.4)
    return lambda: t.PhiConfig(**small(**heads), rope_parameters=rope, qk_layernorm=qk_norm)


def one_after_the_other(model):
    """The MLP sees what attention added."""
    for layer in model.model.layers:
        layer.forward = sequential(layer)


def sequential(layer):
    def forward(x, **kwargs):
        x = x + layer.self_attn(layer.input_layernorm(x), **kwargs)[0]
        return x + layer.mlp(layer.input_layernorm(x))

    return forward


def no_norm(*names):
    def change(attention):
        for name in names:
            setattr(attention, name, nn.Identity())

    return each("Attention", change)


def relu(mlp):
    mlp.activation_fn = nn.ReLU()


PARALLEL = {
    **ROPE,
    "partial rope": whole_heads_rotate,
    "side by side": one_after_the_other,
    "activation (ReLU)": each("MLP", relu),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
    **CAUSAL,
}


def phi3(original, partial=1.0, **more):
    pairs = int(12 * partial) // 2
    rope = dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=SHORT[:pairs], long_factor=LONG[:pairs],
        original_max_position_embeddings=original, partial_rotary_factor=partial,
    )
    return lambda: t.Phi3Config(
        **small(**more), rope_parameters=rope, original_max_position_embeddings=original,
    )


def strong_key_bias(name, p, normal):
    """Half of each head does not rotate, and there a bias of K is the same for every key."""
    if name.endswith("k_layernorm.bias"):
        normal(p, 2.0)
        return True


def threshold(length):
    def mutate(model):
        model.config.rope_parameters["original_max_position_embeddings"] = length

    return mutate


def whole_heads(model):
    """Longrope has a factor per rotated pair."""
    rope_config(partial_rotary_factor=1.0, short_factor=SHORT, long_factor=LONG)(model)


LONGROPE = {
    **{k: v for k, v in ROPE.items() if "base" not in k},
    "rope base ÷ 4": rope_config(rope_theta=2500.0),
    "short factors": rope_config(short_factor=lambda short: [1.0] * len(short)),
    "long factors": rope_config(long_factor=lambda long: SHORT[: len(long)]),
    "attention factor": rope_config(attention_factor=1.0),
    **GQA,
    "activation (ReLU)": each("MLP", relu),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
    **CAUSAL,
}


def published(folder):
    """As Phi 3's own configs have it."""
    older_rope(folder)

    def change(c):
        s = c["rope_scaling"]
        c["rope_scaling"] = dict(type="longrope", short_factor=s["short_factor"], long_factor=s["long_factor"])

    rewrite(folder, change)


def anew(model, ids):
    """Every step from the whole sequence. `Phi3ForCausalLM.prepare_inputs_for_generation` wants that where the original
    context is crossed, and drops the cache; but in transformers 5.17 `generate` then gives it the last token alone."""
    return greedy(lambda *args, **kwargs: model(*args, **kwargs), ids)


CASES = {
    "phi": Case(config=phi(False), features=PARALLEL, publish=older_rope, final_norm=lambda m: m.model.final_layernorm),
    "phi-qk-norm": Case(
        config=phi(True),
        features={**PARALLEL, **GQA, "norm of Q": no_norm("q_layernorm"), "norm of K": no_norm("k_layernorm")},
        liven=strong_key_bias,
        final_norm=lambda m: m.model.final_layernorm,
    ),
    # Prompts below and above the original context; none crosses it while it generates.
    "phi3": Case(
        config=phi3(32, sliding_window=20, tie_word_embeddings=False),
        features={**LONGROPE, **WINDOW},
        publish=published,
        sharp=("qkv_proj.weight",),
    ),
    # As in Phi 4 mini. The prompt of 18 crosses the original context while it generates.
    "phi3-crossing": Case(
        config=phi3(22, partial=0.67, tie_word_embeddings=True),
        features={**LONGROPE, "partial rope": whole_heads, "threshold": threshold(23)},
        sharp=("qkv_proj.weight",),
        lengths=[5, 1, 18, 23, 70],
        greedy=anew,
    ),
}
