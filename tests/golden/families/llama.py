"""Llama and Mistral."""

import math

import torch
import transformers as t

from case import COMMON, STEPS, Case, from_config, from_folder, older_rope, small
from mutations import CAUSAL, GQA, ROPE, SILU, WINDOW, frequencies, plain_frequencies, rope_config


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


def scaled(kind, max_position=512, **more):
    rope = dict(rope_type=kind, rope_theta=10000.0, **more)
    sizes = small(num_hidden_layers=2, max_position_embeddings=max_position)
    return lambda: t.LlamaConfig(**sizes, head_dim=24, rope_parameters=rope, tie_word_embeddings=kind == "linear")


def fresh(model):
    """A dynamic rope of transformers remembers the longest sequence that it has met; here each begins anew."""

    def forget(rope, args, kwargs):
        if kwargs["position_ids"].min() == 0:
            rope.inv_freq.copy_(rope.original_inv_freq)
            rope.max_seq_len_cached = rope.original_max_seq_len

    model.model.rotary_emb.register_forward_pre_hook(forget, with_kwargs=True)
    return model


def cached_greedy(model, ids):
    """As `generate` does it: keys keep the base that they were rotated by."""
    out = model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS,
        eos_token_id=None, pad_token_id=0, output_scores=True, return_dict_in_generate=True,
    )
    best = torch.cat(out.scores).topk(2).values
    return out.sequences[0, len(ids) :].tolist(), (best[:, 0] - best[:, 1]).min().item()


def another_factor(model):
    model.config.rope_parameters["factor"] = 1.0


def another_base(model):
    model.config.rope_parameters["rope_theta"] /= 4


PLAIN = {"rope base ÷ 4": rope_config(rope_theta=2500.0), "scaling": rope_config(rope_type="default")}
KEPT = {k: v for k, v in ROPE.items() if "base" not in k}

CASES = {
    "llama-linear": Case(
        config=scaled("linear", factor=4.0),
        features={**KEPT, **PLAIN, "factor": rope_config(factor=4.5), **GQA, **SILU, **CAUSAL},
        publish=older_rope,
    ),
    "llama-dynamic": Case(
        config=scaled("dynamic", max_position=16, factor=8.0),
        features={
            **KEPT,
            "rope base ÷ 4": another_base,
            "scaling": another_factor,
            **GQA,
            **SILU,
            **CAUSAL,
        },
        model=lambda config: fresh(from_config(config)),
        read=lambda folder, dtype=torch.float32: fresh(from_folder(folder, dtype)),
        publish=older_rope,
        greedy=cached_greedy,
    ),
    "llama-yarn": Case(
        config=scaled("yarn", factor=4.0, original_max_position_embeddings=64),
        features={
            **KEPT,
            **PLAIN,
            "factor": rope_config(factor=4.5, attention_factor=0.1 * math.log(4) + 1),
            "attention factor": rope_config(attention_factor=1.0),
            "original length": rope_config(original_max_position_embeddings=32),
            "fast and slow turns": rope_config(beta_fast=4.0, beta_slow=0.5),
            "whole borders": rope_config(truncate=False),
            **GQA,
            **SILU,
            **CAUSAL,
        },
    ),
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
