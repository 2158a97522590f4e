"""BLOOM."""

import transformers as t
from torch import nn

from case import Case, rewrite
from mutations import NO_MASK, attentions, patched, stacked_rows


def config(heads):
    return t.BloomConfig(
        vocab_size=131, hidden_size=48, n_layer=2, n_head=heads, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
        dtype="float32",
    )


def older(folder):
    """Names that published configs have."""

    def change(c):
        c |= dict(n_embed=c.pop("hidden_size"), num_attention_heads=c.pop("n_head"), seq_length=128, n_inner=None)

    rewrite(folder, change)


def unscaled(model):
    for a in attentions(model):
        a.inv_norm_factor = 1.0


def relu(model):
    for block in model.transformer.h:
        block.mlp.gelu_impl = nn.ReLU()


def features(heads):
    return {
        "ALiBi": patched("build_alibi_tensor", lambda was: lambda *a, **k: 0 * was(*a, **k)),
        "ALiBi × 1.1": patched("build_alibi_tensor", lambda was: lambda *a, **k: 1.1 * was(*a, **k)),
        "embedding norm": lambda m: setattr(m.transformer, "word_embeddings_layernorm", nn.Identity()),
        "order of Q, K and V": stacked_rows("query_key_value", heads, heads),
        "score scale": unscaled,
        "activation (ReLU)": relu,
        **NO_MASK,
    }


def whole_series(was):
    """Slopes of the next power of two, cut off."""
    return lambda mask, heads, dtype: was(mask, 8, dtype)[:heads]


SHARED = dict(sharp=("query_key_value.weight",))
CASES = {
    "bloom": Case(config=lambda: config(4), features=features(4), publish=older, **SHARED),
    "bloom-6-heads": Case(
        config=lambda: config(6),
        features={**features(6), "slopes of 8 heads": patched("build_alibi_tensor", whole_series)},
        **SHARED,
    ),
}
