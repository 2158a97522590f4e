"""Granite: a Llama with multipliers."""

import transformers as t
from torch import nn

from case import Case, small
from mutations import CAUSAL, GQA, ROPE, activation, config_field, each, scores, set_attr


def granite():
    return t.GraniteConfig(
        **small(), embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=4.0,
        tie_word_embeddings=True,
    )


def whole_residual(layer):
    layer.residual_multiplier = 1.0


CASES = {
    "granite": Case(
        config=granite,
        features={
            **ROPE,
            **GQA,
            "embedding_multiplier": set_attr("model.embedding_multiplier", 1.0),
            "residual_multiplier": each("DecoderLayer", whole_residual),
            "attention_multiplier": scores(lambda s, a, i: a.head_dim**-0.5),
            "logits_scaling": config_field(logits_scaling=1.0),
            "activation (ReLU)": activation(nn.ReLU()),
            **CAUSAL,
        },
    ),
}
