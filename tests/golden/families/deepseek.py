"""DeepSeek V2 and V3: latent attention, routed and shared experts."""

import torch
import transformers as t
from torch import nn

from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

from case import Case, from_config, from_folder, small
from mutations import activation, all_see_all, frequencies, plain_frequencies, scores

SIZES = dict(
    intermediate_size=40,
    num_key_value_heads=4,
    moe_intermediate_size=16,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=16,
    v_head_dim=24,
    n_routed_experts=8,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    num_hidden_layers=2,
    tie_word_embeddings=False,
)
# The original context is shorter than the longest prompt.
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
SHARP = ("q_proj.weight", "q_b_proj.weight", "kv_b_proj.weight")


def sizes(**more):
    return small(**{**SIZES, **more})


def v2_lite(**more):
    return t.DeepseekV2Config(
        **sizes(**more), q_lora_rank=None, n_shared_experts=2, topk_method="greedy", routed_scaling_factor=1.7,
        rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    )


def v2():
    return t.DeepseekV2Config(
        **sizes(attention_bias=True, n_routed_experts=12), q_lora_rank=40, n_shared_experts=1, topk_method="group_limited_greedy",
        n_group=4, topk_group=2, routed_scaling_factor=2.5, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    )


def v3(**more):
    return t.DeepseekV3Config(**{
        **sizes(n_routed_experts=12), "q_lora_rank": 40, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, **more,
    })


class RenormalisingRouter(DeepseekV2TopkRouter):
    """`norm_topk_prob` as in the model's own repository, which then leaves the factor out; transformers ignores the field, which
    no published V2 sets."""

    def forward(self, hidden_states):
        x = hidden_states.view(-1, self.hidden_dim).float()
        logits = nn.functional.linear(x, self.weight.float())
        weights, ids = logits.softmax(-1).topk(self.top_k, -1)
        return logits, weights / weights.sum(-1, keepdim=True), ids


def renormalising(model):
    for router in modules(model, "TopkRouter"):
        router.__class__ = RenormalisingRouter
    return model


def as_transformers(model):
    for router in modules(model, "Router"):
        router.__class__ = DeepseekV2TopkRouter


def modules(model, end):
    return [m for m in model.modules() if type(m).__name__.endswith(end)]


def no_rope(model):
    for rope in modules(model, "RotaryEmbedding"):
        was = rope.forward

        def flat(*args, was=was, **kwargs):
            got = was(*args, **kwargs)
            return (torch.ones_like(got[0]), torch.zeros_like(got[1])) if isinstance(got, tuple) else torch.ones_like(got)

        rope.forward = flat


def halves(model):
    """Pairs i with i + d/2 instead of 2i with 2i + 1."""
    for a in modules(model, "Attention"):
        d, r, rank, heads = a.qk_nope_head_dim, a.qk_rope_head_dim, a.kv_lora_rank, a.num_heads
        order = torch.arange(r).view(2, -1).T.flatten()
        q = a.q_proj if a.q_proj is not None else a.q_b_proj
        rows = q.weight.view(heads, d + r, -1)
        rows[:, d:] = rows[:, d:][:, order].clone()
        for p in a.kv_a_proj_with_mqa.parameters():
            p[rank:] = p[rank:][order].clone()


def of_router(**values):
    def mutate(model):
        for router in modules(model, "TopkRouter"):
            for key, value in values.items():
                setattr(router, key, value)

    return mutate


def no_correction(model):
    for router in modules(model, "TopkRouter"):
        router.e_score_correction_bias.zero_()


def other_scores(model):
    """Sigmoid for softmax, or the other way round."""
    for router in modules(model, "TopkRouter"):
        forward = router.forward

        def swapped(x, forward=forward):
            softmax, sigmoid = torch.Tensor.softmax, torch.Tensor.sigmoid
            torch.Tensor.softmax = lambda s, *a, **k: sigmoid(s)
            torch.Tensor.sigmoid = lambda s: softmax(s, -1)
            try:
                return forward(x)
            finally:
                torch.Tensor.softmax, torch.Tensor.sigmoid = softmax, sigmoid

        router.forward = swapped


def no_shared(model):
    for m in model.modules():
        if hasattr(m, "shared_experts"):
            m.shared_experts.down_proj.weight.zero_()


def one_best_of_group(model):
    """A group's score is its best expert's alone."""
    for router in modules(model, "TopkRouter"):
        forward = router.forward

        def first(x, forward=forward):
            topk = torch.Tensor.topk

            def best(s, k, dim=-1, **rest):
                return topk(s, 1 if k == 2 and s.dim() == 3 else k, dim=dim, **rest)

            torch.Tensor.topk = best
            try:
                return forward(x)
            finally:
                torch.Tensor.topk = topk

        router.forward = first


def top(n):
    def mutate(model):
        for router in modules(model, "TopkRouter"):
            router.top_k = n

    return mutate


def dense_everywhere_else(model):
    """The first layer's MLP is scaled."""
    model.model.layers[0].mlp.down_proj.weight.mul_(1.1)


def no_mscale(model):
    for a in modules(model, "Attention"):
        a.scaling = a.qk_head_dim**-0.5


def no_latent_norm(which):
    def mutate(model):
        for a in modules(model, "Attention"):
            setattr(a, which, nn.Identity())

    return mutate


FEATURES = {
    "rope": no_rope,
    "rope pairs": halves,
    "yarn": frequencies(plain_frequencies),
    "yarn's temperature in the scale": no_mscale,
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
    "norm of key latents": no_latent_norm("kv_a_layernorm"),
    "top 3 → top 2": top(2),
    "scaling of routed experts": of_router(routed_scaling_factor=1.0),
    "softmax or sigmoid": other_scores,
    "shared experts": no_shared,
    "dense layers": dense_everywhere_else,
    "activation (ReLU)": activation(nn.ReLU()),
    "causal mask": all_see_all,
}
GROUPS = {
    "top groups": of_router(topk_group=1),
    "all groups": of_router(topk_group=4),
    "norm of query latents": no_latent_norm("q_a_layernorm"),
}


def ratio_of_rope(model):
    """Cosines and sines are not scaled by the ratio of both temperatures."""
    for rope in modules(model, "RotaryEmbedding"):
        rope.attention_scaling = 1.0


V3_FEATURES = {
    **FEATURES,
    **GROUPS,
    "correction of scores": no_correction,
    "renormalising": of_router(norm_topk_prob=False),
    "groups by two": one_best_of_group,
}


def liven(name, p, normal):
    if name.endswith("correction_bias"):
        normal(p, 0.3)
        return True
    if name.endswith("gate.weight"):
        normal(p, 1.5 / p.shape[-1] ** 0.5)
        return True
    return False


def without(features, *names):
    return {k: v for k, v in features.items() if k not in names}


CASES = {
    "deepseek-v2-lite": Case(config=v2_lite, features=FEATURES, liven=liven, sharp=SHARP),
    "deepseek-v2-renormalising": Case(
        config=lambda: v2_lite(norm_topk_prob=True),
        features={"renormalising": as_transformers},
        model=lambda config: renormalising(from_config(config)),
        read=lambda folder, dtype: renormalising(from_folder(folder, dtype)),
        liven=liven,
        sharp=SHARP,
    ),
    "deepseek-v2": Case(
        config=v2,
        features={**FEATURES, **GROUPS, "rope's temperature": ratio_of_rope},
        liven=liven,
        sharp=SHARP,
    ),
    "deepseek-v3": Case(config=v3, features=V3_FEATURES, liven=liven, sharp=SHARP),
    # Halves paired, scores as they are, queries in one step.
    "deepseek-v3-plain": Case(
        config=lambda: v3(rope_interleave=False, norm_topk_prob=False, q_lora_rank=None, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        features=without(V3_FEATURES, "rope pairs", "yarn", "yarn's temperature in the scale", "renormalising", "norm of query latents"),
        liven=liven,
        sharp=SHARP,
    ),
}
