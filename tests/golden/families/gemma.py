"""Gemma."""

import json

import torch
import transformers as t
from safetensors.torch import load_file, save_file
from torch import nn

from case import COMMON, Case, from_config, older_rope, small
from mutations import (
    CAUSAL, GQA, QK_NORM, ROPE, SILU, WINDOW, activation, attentions, config_field, frequencies, no_embed_scale, scores,
    swap_local_and_global,
)


def gemma2():
    return t.Gemma2Config(
        **small(),
        head_dim=16,
        query_pre_attn_scalar=12,
        sliding_window=20,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=6.0,
    )


def no_attention_cap(model):
    for a in attentions(model):
        a.attn_logit_softcapping = None


def other_layers(model):
    """Local layers global and the other way round."""
    swapped = {"full_attention": "sliding_attention", "sliding_attention": "full_attention"}
    model.config.layer_types = [swapped[kind] for kind in model.config.layer_types]


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


def text_part():
    kinds = ["sliding_attention", "full_attention"]
    rope = dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0), full_attention=dict(rope_type="default", rope_theta=1000000.0))
    return t.Gemma3TextConfig(
        **small(num_hidden_layers=2), head_dim=16, query_pre_attn_scalar=12, sliding_window=20, layer_types=kinds, rope_parameters=rope
    )


PREFIX = "language_model.model."


def write_inside(model, folder):
    """As the published multimodal checkpoints have it, without what sees."""
    text = model.config.to_dict()
    rope = text.pop("rope_parameters")
    del text["architectures"]
    text |= dict(rope_theta=rope["full_attention"]["rope_theta"], rope_local_base_freq=rope["sliding_attention"]["rope_theta"])
    config = dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", text_config=text)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    state = {k: w for k, w in model.state_dict().items() if not k.startswith("lm_head")}
    tensors = {PREFIX + k.removeprefix("model."): w.contiguous() for k, w in state.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def read_inside(folder, dtype=torch.float32):
    model = from_config(text_part())
    tensors = load_file(folder / "model.safetensors")
    missing, odd = model.load_state_dict({"model." + k.removeprefix(PREFIX): w for k, w in tensors.items()}, strict=False)
    assert missing == ["lm_head.weight"] and not odd, (missing, odd)
    return model.to(dtype)


CASES = {
    "gemma3-inside": Case(
        config=text_part,
        features={
            **{k: v for k, v in ROPE.items() if "base" not in k},
            "local and global rope": swap_local_and_global,
            **WINDOW,
            **QK_NORM,
            **GQA,
            "query_pre_attn_scalar": scores(lambda s, a, i: a.head_dim**-0.5),
            "embedding scale": no_embed_scale,
            "activation (ReLU)": activation(nn.ReLU()),
            **CAUSAL,
        },
        write=write_inside,
        read=read_inside,
        zero_centred=True,
    ),
    "gemma": Case(
        config=lambda: t.GemmaConfig(**small(), head_dim=16),
        features={**ROPE, **GQA, **SILU, "embedding scale": no_embed_scale, **CAUSAL},
        zero_centred=True,
    ),
    "gemma2": Case(
        config=gemma2,
        features={
            **ROPE,
            **WINDOW,
            "which layers have windows": other_layers,
            **GQA,
            "attention soft cap": no_attention_cap,
            "final soft cap": config_field(final_logit_softcapping=None),
            "query_pre_attn_scalar": scores(lambda s, a, i: a.head_dim**-0.5),
            "embedding scale": no_embed_scale,
            "activation (ReLU)": activation(nn.ReLU()),
            **CAUSAL,
        },
        publish=older_rope,
        zero_centred=True,
    ),
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
