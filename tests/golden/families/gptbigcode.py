"""StarCoder and SantaCoder."""

import transformers as t
from torch import nn

from case import Case
from mutations import NO_MASK, activation, scores, stacked_rows


def config(**more):
    return t.GPTBigCodeConfig(
        vocab_size=131, n_embd=64, n_layer=2, n_head=4, n_positions=128, n_inner=80, bos_token_id=1, eos_token_id=2,
        attn_implementation="eager", dtype="float32", **more,
    )


FEATURES = {
    "learned positions": lambda m: m.transformer.wpe.weight.zero_(),
    "score scale": scores(lambda s, a, i: s * a.head_dim**0.5),
    "activation (ReLU)": activation(nn.ReLU()),
    **NO_MASK,
}
CASES = {
    "gptbigcode": Case(config=config, features=FEATURES, sharp=("c_attn.weight",)),
    "gptbigcode-mha": Case(
        config=lambda: config(multi_query=False, tie_word_embeddings=False),
        features={"order of Q, K and V": stacked_rows("c_attn", 4, 4), **FEATURES},
        sharp=("c_attn.weight",),
    ),
}
