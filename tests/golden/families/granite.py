"""Llamas with multipliers: Granite, and MiniCPM, which transformers has not."""

import transformers as t
from torch import nn

from case import Case, small
from mutations import CAUSAL, GQA, ROPE, activation, config_field, each, scores, set_attr
from reference import minicpm


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
    "minicpm": Case(
        config=minicpm.config,
        model=minicpm.Model,
        read=minicpm.read,
        write=minicpm.write,
        features={
            "rope": set_attr("rotates", False),
            "heads of K and V": set_attr("tiled", True),
            "scale_emb": set_attr("config.scale_emb", 1.0),
            "scale_depth": set_attr("config.scale_depth", 3**0.5),
            "dim_model_base": set_attr("config.dim_model_base", 48),
            "causal mask": set_attr("causal", False),
        },
    ),
}
