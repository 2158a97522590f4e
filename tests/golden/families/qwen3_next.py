"""Qwen3-Next: gated delta rule beside gated attention, and experts."""

import sys

import torch
import torch.nn.functional as F
import transformers as t
from torch import nn

from case import COMMON, Case, older_rope
from mutations import GQA, QK_NORM, ROPE, SILU

SIZES = dict(
    vocab_size=131,
    hidden_size=32,
    intermediate_size=40,
    head_dim=16,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    num_experts=5,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=24,
)


def qwen3_next():
    return t.Qwen3NextConfig(
        **{**COMMON, **SIZES, "num_hidden_layers": 4},
        num_experts_per_tok=2,
        norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25),
        tie_word_embeddings=False,
    )


def mixed():
    """What published configs do not use: a dense layer, biases, tied embeddings, chosen scores as they are."""
    return t.Qwen3NextConfig(
        **{**COMMON, **SIZES, "num_hidden_layers": 3},
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        mlp_only_layers=[0],
        num_experts_per_tok=3,
        norm_topk_prob=False,
        attention_bias=True,
        tie_word_embeddings=True,
    )


def liven(name, p, normal):
    if name.endswith("A_log"):
        # A memory of some six tokens; most heads of a fresh model remember one.
        normal(p, 0.7, -1.5)
        return True
    return False


def layers(model, kind):
    return [m for m in model.modules() if type(m).__name__ == kind]


def patched(name, make):
    """A function of the model's module through `make(function)`."""

    def mutate(model):
        module = sys.modules[type(model).__module__]
        was = getattr(module, name)
        setattr(module, name, make(was))
        return lambda: setattr(module, name, was)

    return mutate


def rule(change):
    """Arguments of the delta rule, a dict, through `change`."""

    def make(was):
        def run(query, key, value, g, beta, **more):
            args = dict(query=query, key=key, value=value, g=g, beta=beta, **more)
            change(args)
            return was(**args)

        return run

    return patched("torch_chunk_gated_delta_rule", make)


def tile_keys(args):
    """Value head i reads key head i mod keys."""
    for name in ("query", "key"):
        x = args[name]
        args[name] = x[:, :, ::2].repeat(1, 1, 2, 1)


def no_delta(was):
    """Plain linear attention with decay: nothing is taken out of the state."""

    def run(query, key, value, g, beta, **_):
        norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
        q, k = norm(query) * query.shape[-1] ** -0.5, norm(key)
        state, out = torch.zeros(k.shape[2], k.shape[3], value.shape[3]), []
        for i in range(k.shape[1]):
            state = state * g[0, i].exp()[:, None, None]
            state = state + torch.einsum("hk,hv->hkv", k[0, i], beta[0, i][:, None] * value[0, i])
            out.append(torch.einsum("hkv,hk->hv", state, q[0, i]))
        return torch.stack(out)[None], None

    return run


def only_now(was):
    return lambda x, weight, bias=None, activation=None, **_: F.silu(x * weight[None, :, -1:])


def one_less(was):
    return lambda x, weight, bias=None, **more: was(x, torch.cat([0 * weight[:, :1], weight[:, 1:]], 1), bias, **more)


def convolved_as_is(was):
    def run(x, weight, bias=None, activation=None, **_):
        width = weight.shape[1]
        return F.conv1d(F.pad(x, (width - 1, 0)), weight[:, None], groups=len(weight))

    return run


def norms(forward):
    def mutate(model):
        for m in layers(model, "Qwen3NextRMSNormGated"):
            m.forward = lambda x, gate, m=m: forward(m, x, gate)

    return mutate


def unit(m, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m.variance_epsilon)


def half_of_q(model):
    for a in layers(model, "Qwen3NextAttention"):
        gates = a.q_proj.weight.view(-1, 2, a.head_dim, a.q_proj.in_features)[:, 1]
        gates.zero_()


def gates_first(model):
    for a in layers(model, "Qwen3NextAttention"):
        for p in (p for p in (a.q_proj.weight, a.q_proj.bias) if p is not None):
            p.copy_(p.view(-1, 2, a.head_dim, *p.shape[1:]).flip(1).reshape(p.shape))


def routers(**change):
    def mutate(model):
        for m in layers(model, "Qwen3NextTopKRouter"):
            for name, by in change.items():
                setattr(m, name, by(getattr(m, name)))

    return mutate


def zero(kind, path):
    def mutate(model):
        for m in layers(model, kind):
            m.get_parameter(path).zero_()

    return mutate


def see_all(was):
    return lambda module, q, k, v, mask, **more: was(module, q, k, v, None, **more)


FEATURES = {
    **{k: v for k, v in ROPE.items()},
    **QK_NORM,
    **GQA,
    **SILU,
    "causal mask": patched("eager_attention_forward", see_all),
    "gate of attention": half_of_q,
    "gates before queries": gates_first,
    "decay": rule(lambda a: a.update(g=0 * a["g"])),
    "A": zero("Qwen3NextGatedDeltaNet", "A_log"),
    "step size": rule(lambda a: a.update(beta=torch.ones_like(a["beta"]))),
    "length of queries and keys": rule(lambda a: a.update(use_qk_l2norm_in_kernel=False)),
    "heads of queries and keys": rule(tile_keys),
    "what is taken out of the state": patched("torch_chunk_gated_delta_rule", no_delta),
    "convolution": patched("causal_conv1d_fn", only_now),
    "oldest position of the convolution": patched("causal_conv1d_fn", one_less),
    "activation of the convolution": patched("causal_conv1d_fn", convolved_as_is),
    "gate of the rule": norms(lambda m, x, gate: m.weight * unit(m, x)),
    "gate before norm": norms(lambda m, x, gate: m.weight * unit(m, x * F.silu(gate))),
    "shared expert": zero("Qwen3NextSparseMoeBlock", "shared_expert.down_proj.weight"),
    "gate of the shared expert": zero("Qwen3NextSparseMoeBlock", "shared_expert_gate.weight"),
    "one expert more": routers(top_k=lambda k: k + 1),
    "scores of the chosen divided by their sum": routers(norm_topk_prob=lambda x: not x),
}

CASES = {
    name: Case(
        config=config,
        publish=publish,
        features=FEATURES,
        zero_centred=lambda name: not name.endswith("linear_attn.norm.weight"),
        liven=liven,
    )
    for name, config, publish in [("qwen3-next", qwen3_next, older_rope), ("qwen3-next-mixed", mixed, None)]
}
