"""MPT: as transformers has it, and with what only llm-foundry has."""

import torch
import transformers as t
from torch import nn

from case import Case, rewrite
from mutations import NO_MASK, patched
from reference.mpt import Mpt, read, slopes, write

SIZES = dict(vocab_size=131, d_model=48, n_layers=2, max_seq_len=128)


def of_transformers(heads, **attn):
    return t.MptConfig(
        **SIZES, n_heads=heads, attn_config=attn, bos_token_id=1, eos_token_id=2, attn_implementation="eager", dtype="float32"
    )


def of_foundry(attn, **more):
    """What llm-foundry writes, without what only training reads."""
    attn = dict(attn_type="multihead_attention", attn_impl="torch", attn_pdrop=0, prefix_lm=False, qk_ln=False, softmax_scale=None) | attn
    return dict(
        architectures=["MPTForCausalLM"], model_type="mpt", **SIZES, n_heads=6, expansion_ratio=2, attn_config=attn, init_device="cpu",
        learned_pos_emb=True, no_bias=True, norm_type="low_precision_layernorm", torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    ) | more


def first_name(folder):
    rewrite(folder, lambda c: {**c, "architectures": ["MPTForCausalLM"]})


def each(kind, name, value):
    """Attribute `name` of every module of type `kind`; `value` may be a function of the old one."""

    def mutate(model):
        for m in model.modules():
            if type(m).__name__ == kind and hasattr(m, name):
                setattr(m, name, value(getattr(m, name)) if callable(value) else value)

    return mutate


def relu(model):
    for block in model.transformer.blocks:
        (block.ffn if hasattr(block.ffn, "act") else block).act = nn.ReLU()


def alibi(by):
    return patched("build_mpt_alibi_tensor", lambda was: lambda *a: by(was, *a))


OF_TRANSFORMERS = {
    "ALiBi": alibi(lambda was, *a: 0 * was(*a)),
    "ALiBi × 1.1": alibi(lambda was, *a: 1.1 * was(*a)),
    "score scale × 1.1": each("MptAttention", "softmax_scale", lambda s: 1.1 * s),
    "activation (ReLU)": relu,
    **NO_MASK,
}
OF_FOUNDRY = {
    "score scale × 1.1": each("Attention", "scale", lambda s: 1.1 * s),
    "activation (ReLU)": relu,
    "causal mask": lambda m: [setattr(b.attn, "sees_all", True) for b in m.transformer.blocks] and None,
}
ALIBI = {"ALiBi": each("Attention", "slopes", lambda s: 0 * s)}


def regrouped(model):
    """Query heads in another order read other key heads."""
    for block in model.transformer.blocks:
        w = block.attn.Wqkv.weight
        w[:48] = w[:48].view(2, 3, 8, 48).transpose(0, 1).reshape(48, 48)
        o = block.attn.out_proj.weight
        o.copy_(o.view(48, 2, 3, 8).transpose(1, 2).reshape(48, 48))


SHARED = dict(
    is_norm=lambda name: "norm_" in name or "_ln." in name,
    final_norm=lambda m: m.transformer.norm_f,
    sharp=("Wqkv.weight",),
)
PLAIN = dict(model=lambda c: Mpt(c).eval(), read=read, write=write, **SHARED)
CASES = {
    "mpt": Case(config=lambda: of_transformers(4), features=OF_TRANSFORMERS, publish=first_name, **SHARED),
    "mpt-clip": Case(
        config=lambda: of_transformers(6, clip_qkv=1.5, softmax_scale=0.5),
        features={
            **OF_TRANSFORMERS,
            "clip_qkv": each("MptAttention", "clip_qkv", None),
            "softmax_scale": each("MptAttention", "softmax_scale", 8**-0.5),
            "slopes of 8 heads": alibi(lambda was, heads, *a: was(8, *a)[:heads]),
        },
        **SHARED,
    ),
    "mpt-qk-ln": Case(
        config=lambda: of_foundry(dict(qk_ln=True, alibi=True), logit_scale="inv_sqrt_d_model"),
        features={
            **OF_FOUNDRY,
            **ALIBI,
            "norm of Q": lambda m: [setattr(b.attn, "q_ln", nn.Identity()) for b in m.transformer.blocks] and None,
            "norm of K": lambda m: [setattr(b.attn, "k_ln", nn.Identity()) for b in m.transformer.blocks] and None,
            "logit scale": lambda m: setattr(m, "logit_scale", 1.0),
        },
        **PLAIN,
    ),
    "mpt-storywriter": Case(
        config=lambda: of_foundry(dict(alibi=True, alibi_bias_max=16, clip_qkv=1.5), max_seq_len=65536),
        features={
            **OF_FOUNDRY,
            **ALIBI,
            "alibi_bias_max": each("Attention", "slopes", lambda s: slopes(6, 8)),
            "clip_qkv": each("Attention", "clip", None),
        },
        lengths=[5, 1, 23, 150],
        **PLAIN,
    ),
    "mpt-bias": Case(
        config=lambda: of_foundry(dict(alibi=False, attn_type="grouped_query_attention", kv_n_heads=2), no_bias=False),
        features={
            **OF_FOUNDRY,
            "learned positions": lambda m: m.transformer.wpe.weight.zero_(),
            "heads of K and V": regrouped,
        },
        **PLAIN,
    ),
}
