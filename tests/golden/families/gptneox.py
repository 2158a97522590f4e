"""GPT-NeoX, Pythia, Dolly."""

import torch
import transformers as t
from torch import nn

from case import Case, rewrite
from mutations import NO_MASK, ROPE, activation, rope_modules, scores, stacked_rows


def config(**more):
    return t.GPTNeoXConfig(
        vocab_size=131, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager", dtype="float32", **more,
    )


def older(folder):
    """Rope under the names of published configs."""

    def change(c):
        rope = c.pop("rope_parameters")
        c |= dict(rotary_emb_base=rope["rope_theta"], rotary_pct=rope["partial_rotary_factor"])

    rewrite(folder, change)


def rotate_all(model):
    for rope in rope_modules(model):
        theta, d = model.config.rope_parameters["rope_theta"], 16
        rope.inv_freq = 1.0 / theta ** (torch.arange(0, d, 2).float() / d)


def flip_residual(model):
    for layer in model.gpt_neox.layers:
        layer.use_parallel_residual = not layer.use_parallel_residual


FEATURES = {
    **ROPE,
    "rotary share": rotate_all,
    "order of Q, K and V": stacked_rows("query_key_value", 4, 4),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
    "residual": flip_residual,
    "activation (ReLU)": activation(nn.ReLU()),
    **NO_MASK,
}
SHARED = dict(
    features=FEATURES,
    final_norm=lambda m: m.gpt_neox.final_layer_norm,
    embeddings=("embed_in.weight",),
    sharp=("query_key_value.weight",),
)
CASES = {
    "gptneox": Case(
        config=lambda: config(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)),
        publish=older,
        **SHARED,
    ),
    "gptneox-sequential": Case(
        config=lambda: config(
            rope_parameters=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.5),
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
        ),
        **SHARED,
    ),
}
