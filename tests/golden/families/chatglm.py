"""ChatGLM-6B, ChatGLM2, ChatGLM3 and GLM-4-9B, of which transformers has the last three under other names."""

import torch
import torch.nn.functional as F

from case import Case
from mutations import set_attr
from reference import chatglm
from reference import chatglm2


def asked(config, ids):
    """A context, gmask and bos; the longest prompt has the beginning of an answer too, that of 23 tokens mask for gmask."""
    n, marks = len(ids), [config["gmask_token_id"], config["bos_token_id"]]
    usual = torch.where(ids < config["mask_token_id"], ids, 5)
    if n == 70:
        at = 60
    elif n == 23:
        marks[0], at = config["mask_token_id"], n - 2
    else:
        at = n - 2
    usual[at : at + 2] = torch.tensor(marks)
    return usual


def first_alpha(model):
    model.alpha = 1.0


FIRST = Case(
    config=chatglm.config,
    model=chatglm.Model,
    read=chatglm.read,
    write=chatglm.write,
    features={
        "prefix": set_attr("prefix", False),
        "prefix + 1": set_attr("one_more", 1),
        "prefix − 1": set_attr("one_more", -1),
        "place of the mask": set_attr("mask_place", 0),
        "block positions from 0": set_attr("block_begin", 0),
        "rope pairs": set_attr("pairs", True),
        "rows by head": set_attr("flat_rows", True),
        "weight of the residual": first_alpha,
        "activation (ReLU)": set_attr("act", torch.relu),
        "activation (SiLU)": set_attr("act", F.silu),
        "score scale × 1.1": set_attr("sharpness", 1.1),
    },
    final_norm=lambda m: m.transformer.final_layernorm,
    lengths=[4, 2, 23, 70],
    prompt=asked,
)


def field(key, value):
    def mutate(model):
        model.config[key] = value

    return mutate


def second(more, **features):
    kv_heads = more.get("multi_query_group_num", 2)
    common = {
        "rope base ÷ 4": lambda m: setattr(m, "theta", m.theta / 4),
        "rope pairs": set_attr("adjacent", False),
        "rope of whole heads": set_attr("share", 1.0),
        "gate and up": set_attr("swapped", True),
        "activation (ReLU)": set_attr("act", torch.relu),
        "score scale × 1.1": set_attr("sharpness", 1.1),
        "causal mask": set_attr("causal", False),
    }
    grouped = {} if kv_heads in (1, 4) or not more.get("multi_query_attention", True) else {"heads of K and V": set_attr("tiled", True)}
    return Case(
        config=lambda: chatglm2.config(**more),
        model=chatglm2.Model,
        read=chatglm2.read,
        write=chatglm2.write,
        features={**common, **grouped, **features},
        final_norm=lambda m: m.transformer.encoder.final_layernorm,
        is_norm=lambda name: "layernorm" in name and name.endswith("weight"),
    )


RATIO = {"rope ratio": set_attr("theta", 10000.0)}

CASES = {
    "chatglm-6b": FIRST,
    "chatglm2-6b": second({}),
    # As the versions for long contexts.
    "chatglm3-6b": second(dict(kv_channels=16, rope_ratio=50), **RATIO),
    "glm-4-9b": second(dict(num_attention_heads=6, kv_channels=16, rope_ratio=500, layernorm_epsilon=1.5625e-07), **RATIO),
    # What the configs of this class can say and no published model does: as many key heads as queries, biases, layer norms,
    # residuals from what was normed.
    "chatglm2-other": second(
        dict(
            architectures=["ChatGLMForConditionalGeneration"],
            multi_query_attention=False, add_bias_linear=True, rmsnorm=False, apply_residual_connection_post_layernorm=True,
        ),
        **{
            "rows by head": set_attr("flat_rows", True),
            "residual from what was normed": field("apply_residual_connection_post_layernorm", False),
        },
    ),
}
