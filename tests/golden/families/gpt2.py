"""GPT-2."""

import transformers as t
from torch import nn

from case import Case
from mutations import CAUSAL, activation, scores


def gpt2():
    return t.GPT2Config(
        vocab_size=199,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=128,
        n_inner=None,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
        dtype="float32",
    )


CASES = {
    "gpt2": Case(
        config=gpt2,
        features={
            "learned positions": lambda m: m.transformer.wpe.weight.zero_(),
            "score scale": scores(lambda s, a, i: s * a.head_dim**0.5),
            "score scale by layer": scores(lambda s, a, i: s * (i + 1)),
            "activation (ReLU)": activation(nn.ReLU()),
            **CAUSAL,
        },
        conv1d=True,
    ),
}
