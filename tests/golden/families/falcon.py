"""Falcon."""

import json

import transformers as t
from torch import nn

from case import Case, rewrite
from mutations import NO_MASK, ROPE, attentions, patched, stacked_rows


COMMON = dict(vocab_size=131, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2, dtype="float32")


def config(**more):
    return t.FalconConfig(**COMMON, hidden_size=64, ffn_hidden_size=80, max_position_embeddings=128, **more)


RW = dict(n_head="num_attention_heads", n_layer="num_hidden_layers")
RW_FIELDS = """vocab_size hidden_size alibi bias multi_query parallel_attn layer_norm_epsilon hidden_dropout attention_dropout
initializer_range use_cache bos_token_id eos_token_id""".split()


def first_names(folder):
    """As the repositories of Falcon RW had it before transformers had the class."""

    def change(c):
        kept = {k: c[k] for k in RW_FIELDS} | {old: c[new] for old, new in RW.items()}
        return dict(architectures=["RWForCausalLM"], model_type="RefinedWebModel", torch_dtype="float32") | kept

    rewrite(folder, change)


def read_first_names(folder, dtype):
    c = json.loads((folder / "config.json").read_text())
    config = t.FalconConfig(**{k: c[k] for k in RW_FIELDS}, **{new: c[old] for old, new in RW.items()})
    return t.FalconForCausalLM.from_pretrained(folder, config=config, attn_implementation="sdpa", dtype=dtype).eval()


# Transformers' eager attention adds ALiBi twice, in the mask too; its default, sdpa, once, as the first code did.
def model(config):
    return t.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()


def read(folder, dtype):
    return t.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=dtype).eval()


def sharper(model):
    """sdpa scales by the width of a head."""
    for a in attentions(model):
        was = a._split_heads
        a._split_heads = lambda x, was=was: (lambda q, k, v: (1.1 * q, k, v))(*was(x))


def relu(model):
    for block in model.transformer.h:
        block.mlp.act = nn.ReLU()


def other_residual(model):
    """In sequence what was side by side, and the other way round."""
    for block in model.transformer.h:
        first = block.ln_attn if hasattr(block, "ln_attn") else block.input_layernorm
        last = getattr(block, "ln_mlp", getattr(block, "post_attention_layernorm", first))
        side_by_side = block.config.new_decoder_architecture or block.config.parallel_attn

        def forward(x, block=block, first=first, last=last, side_by_side=side_by_side, **kwargs):
            attended = block.self_attention(first(x), **kwargs)[0]
            if side_by_side:
                x = x + attended
                return x + block.mlp(last(x)), None
            return x + attended + block.mlp(last(x)), None

        block.forward = forward


def swapped_norms(model):
    for block in model.transformer.h:
        block.ln_attn, block.ln_mlp = block.ln_mlp, block.ln_attn


FEATURES = {
    "score scale × 1.1": sharper,
    "residual": other_residual,
    "activation (ReLU)": relu,
    **NO_MASK,
}
SHARED = dict(model=model, read=read, sharp=("query_key_value.weight",))
CASES = {
    "falcon-7b": Case(config=config, features={**ROPE, **FEATURES}, **SHARED),
    "falcon-40b": Case(
        config=lambda: config(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False),
        features={
            **ROPE,
            "order of Q, K and V": stacked_rows("query_key_value", 4, 2),
            "which norm is whose": swapped_norms,
            **FEATURES,
        },
        **SHARED,
    ),
    "falcon-11b": Case(
        config=lambda: config(
            new_decoder_architecture=True,
            num_kv_heads=2,
            num_ln_in_parallel_attn=1,
            rope_parameters=dict(rope_type="default", rope_theta=500042.0),
        ),
        features={**ROPE, "order of Q, K and V": stacked_rows("query_key_value", 4, 2), **FEATURES},
        **SHARED,
    ),
    "falcon-rw": Case(
        config=lambda: t.FalconConfig(**COMMON, hidden_size=48, alibi=True, bias=True, multi_query=False, parallel_attn=False),
        features={
            "ALiBi": patched("build_alibi_tensor", lambda was: lambda *a, **k: 0 * was(*a, **k)),
            "ALiBi not scaled with the scores": patched("build_alibi_tensor", lambda was: lambda *a, **k: 12**0.5 * was(*a, **k)),
            "order of Q, K and V": stacked_rows("query_key_value", 4, 4),
            **FEATURES,
        },
        publish=first_names,
        **{**SHARED, "read": read_first_names},
    ),
}
