"""Qwen, the first of its name, which transformers has not."""

import torch

from case import Case
from mutations import set_attr
from reference import qwen1


def field(key, value):
    def mutate(model):
        model.config[key] = value

    return mutate


def case(config, prompts, **features):
    return Case(
        config=lambda: qwen1.config(**config),
        model=qwen1.Model,
        read=qwen1.read,
        write=qwen1.write,
        features={
            "rope base ÷ 4": field("rotary_emb_base", config.get("rotary_emb_base", 10000) / 4),
            "rope pairs": set_attr("paired", True),
            "w1 and w2": set_attr("swapped", True),
            "activation (ReLU)": set_attr("act", torch.relu),
            "score scale × 1.1": set_attr("sharpness", 1.1),
            "causal mask": set_attr("causal", False),
            **features,
        },
        # Nothing rotates in the last element of Q · b_k, but biases of K count here: all elements rotate.
        lengths=prompts,
    )


LOG_N = {"log-n": field("use_logn_attn", False), "log-n of other length": field("seq_length", 23)}
NTK = {"dynamic NTK": field("use_dynamic_ntk", False)}

# No prompt and its eight tokens cross a power of two times seq_length: the original keeps a prompt's base for what follows.
CASES = {
    # Prompts of up to 70 tokens within the 512 of training.
    "qwen1-short": case({}, [5, 1, 23, 70]),
    # Twice and four times as long as in training: alpha is 1, 1, 3 and 7.
    "qwen1-long": case(dict(seq_length=20), [5, 1, 25, 70], **LOG_N, **NTK),
    # Neither; partial rope, biases everywhere.
    "qwen1-plain": case(
        dict(seq_length=20, use_dynamic_ntk=False, use_logn_attn=False, no_bias=False, rotary_pct=0.5, kv_channels=16),
        [5, 1, 25, 70],
    ),
}
