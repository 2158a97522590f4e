"""Mixtures of experts: Mixtral, Qwen 2 and 3, gpt-oss."""

import math
import sys

import torch
import transformers as t
from safetensors.torch import load_file, save_file
from torch import nn

from case import Case, from_config, from_folder, older_rope, rewrite, small
from mutations import CAUSAL, GQA, QK_NORM, ROPE, WINDOW, activation, attentions, frequencies, plain_frequencies, scores


def eager(model):
    """Experts one by one, which mutations can reach."""
    model.config._experts_implementation = "eager"
    return model


def in_bf16(model):
    """Whatever is written to a parameter is what a bf16 file will hold."""

    @torch.no_grad()
    def rounded(model, _):
        for p in model.parameters():
            p.copy_(p.bfloat16())

    model.register_forward_pre_hook(rounded)
    return model


def moe(**kwargs):
    return Case(
        model=kwargs.pop("model", lambda config: eager(from_config(config))),
        read=kwargs.pop("read", lambda folder, dtype: eager(from_folder(folder, dtype))),
        **kwargs,
    )


def modules(model, name, attribute):
    """Modules in a child called `name` that have the attribute."""
    found = [m for path, m in model.named_modules() if path.endswith(name) and hasattr(m, attribute)]
    assert found, name
    return found


def routers(model, change):
    """What routers answer, (logits, weights, ids), through `change`."""
    for path, m in model.named_modules():
        if path.endswith(("mlp.gate", "mlp.router")):
            was = m.forward
            m.forward = lambda *a, was=was, m=m: change(m, *was(*a))


def experts_in_turn(model):
    """Each expert's first matrix is its neighbour's."""
    for m in modules(model, "experts", "gate_up_proj"):
        m.gate_up_proj.copy_(m.gate_up_proj.roll(1, 0))


def down_in_turn(model):
    for m in modules(model, "experts", "down_proj"):
        m.down_proj.copy_(m.down_proj.roll(1, 0))


def weights_in_reverse(model):
    routers(model, lambda m, l, w, i: (l, w.flip(-1), i))


def fewer(model):
    """The last of the chosen experts is left out."""
    routers(model, lambda m, l, w, i: (l, torch.cat([w[:, :-1], 0 * w[:, -1:]], -1), i))


def toggled(normalize):
    """Weights summed to one, or left as softmax gave them."""

    def weights(m, l, w, i):
        raw = l.float().softmax(-1).gather(-1, i)
        return l, (raw / raw.sum(-1, keepdim=True) if normalize else raw).to(l.dtype), i

    return lambda model: routers(model, weights)


def swapped_halves(model):
    """Up is activated instead of gate."""
    for m in modules(model, "experts", "gate_up_proj"):
        gate, up = m.gate_up_proj.clone().chunk(2, 1)
        m.gate_up_proj.copy_(torch.cat([up, gate], 1))


def no_shared_gate(model):
    for m in modules(model, "mlp", "shared_expert_gate"):
        m.shared_expert_gate.forward = lambda x: torch.full_like(x[..., :1], 100.0)


def no_shared_expert(model):
    for m in modules(model, "mlp", "shared_expert"):
        m.shared_expert.forward = torch.zeros_like


ROUTED = {
    "gate and up of another expert": experts_in_turn,
    "down of another expert": down_in_turn,
    "weights in reverse": weights_in_reverse,
    "last of the chosen": fewer,
    "activation (ReLU)": activation(nn.ReLU()),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
}
HALVES = {"up before gate": swapped_halves}
SHARED = {"gate of the shared expert": no_shared_gate, "shared expert": no_shared_expert}
RENORMALIZED = {"renormalising": toggled(False)}
RAW = {"no renormalising": toggled(True)}
COMMON = {**ROPE, **GQA, **CAUSAL, **ROUTED}


def stacked(folder):
    """Experts as transformers 5 holds them: one tensor for all."""
    path = folder / "model.safetensors"
    model = from_folder(folder)
    tensors = {name: p.contiguous() for name, p in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    assert any(name.endswith("experts.gate_up_proj") for name in tensors), list(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def mixtral(**more):
    return lambda: t.MixtralConfig(
        **small(num_hidden_layers=2, intermediate_size=40),
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        **more,
    )



def one_window(by):
    """Of models whose every layer has the config's window."""

    def mutate(model):
        model.config.sliding_window = by(model.config.sliding_window)
        for a in attentions(model):
            a.sliding_window = model.config.sliding_window

    return mutate


ONE_WINDOW = {"window": one_window(lambda w: 10_000), "window + 1": one_window(lambda w: w + 1), "window − 1": one_window(lambda w: w - 1)}


def qwen2(**more):
    return lambda: t.Qwen2MoeConfig(
        **small(num_hidden_layers=2, intermediate_size=56),
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        **more,
    )


def qwen3(**more):
    return lambda: t.Qwen3MoeConfig(
        **small(num_hidden_layers=2, intermediate_size=56),
        head_dim=16,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        **more,
    )


# gpt-oss


def gpt_oss():
    return t.GptOssConfig(
        **{
            **small(num_hidden_layers=2, intermediate_size=32, hidden_size=32),
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 24,
        },
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=150000.0,
            factor=8.0,
            beta_fast=32.0,
            beta_slow=1.0,
            original_max_position_embeddings=32,
            truncate=False,
        ),
    )


def gpt_oss_model(config):
    return in_bf16(eager(from_config(config)))


def gpt_module(model):
    return sys.modules[type(model).__module__]


def truncated(model):
    """Ramp bounds rounded to whole dimensions."""
    config = type(model.config)(**{**model.config.to_dict(), "rope_parameters": {**model.config.rope_parameters, "truncate": True}})
    rope = model.model.rotary_emb
    rope.inv_freq.copy_(type(rope)(config).inv_freq)


def no_temperature(model):
    model.model.rotary_emb.attention_scaling = 1.0


def pairs(model):
    """Elements 2i with 2i + 1."""
    module = gpt_module(model)
    was = module._apply_rotary_emb

    def turned(x, cos, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    module._apply_rotary_emb = turned
    return lambda: setattr(module, "_apply_rotary_emb", was)


def no_sinks(model):
    for a in attentions(model):
        a.sinks.fill_(-1e4)


def halves(model):
    """Gate columns, then up columns."""
    for m in modules(model, "experts", "gate_up_proj"):
        for p in (m.gate_up_proj, m.gate_up_proj_bias):
            p.copy_(torch.cat([p[..., 0::2], p[..., 1::2]], -1))


def on_experts(**values):
    def mutate(model):
        for m in modules(model, "experts", "gate_up_proj"):
            for name, value in values.items():
                setattr(m, name, value)

    return mutate


def gates(f):
    def mutate(model):
        for m in modules(model, "experts", "gate_up_proj"):
            m._apply_gate = lambda x, m=m: f(m, x[..., ::2], x[..., 1::2])

    return mutate


def swiglu(m, gate, up, shift=1.0):
    gate, up = gate.clamp(max=m.limit), up.clamp(-m.limit, m.limit)
    return (up + shift) * gate * torch.sigmoid(gate * m.alpha)


def layers_swapped(model):
    kinds = model.config.layer_types[::-1]
    model.config.layer_types = kinds
    for kind, a in zip(kinds, attentions(model)):
        a.sliding_window = model.config.sliding_window if kind == "sliding_attention" else None


def over_all(m, l, w, i):
    return l, l.softmax(-1).gather(-1, i), i


GPT_OSS = {
    "rope": ROPE["rope"],
    "rope pairs": pairs,
    "yarn": frequencies(plain_frequencies),
    "yarn's ramp truncated": truncated,
    "yarn's temperature": no_temperature,
    "sinks": no_sinks,
    **WINDOW,
    "windows on the other layers": layers_swapped,
    **GQA,
    **CAUSAL,
    "gate and up of another expert": experts_in_turn,
    "down of another expert": down_in_turn,
    "weights in reverse": weights_in_reverse,
    "last of the chosen": fewer,
    "softmax over all experts": lambda model: routers(model, over_all),
    "gate and up interleaved": halves,
    "limit of gate and up": on_experts(limit=1e9),
    "alpha": on_experts(alpha=1.0),
    "1 + up": gates(lambda m, g, u: swiglu(m, g, u, 0.0)),
    "clamped gate": gates(lambda m, g, u: (u.clamp(-m.limit, m.limit) + 1) * g * torch.sigmoid(g * m.alpha)),
    "clamped up": gates(lambda m, g, u: (u + 1) * g.clamp(max=m.limit) * torch.sigmoid(g.clamp(max=m.limit) * m.alpha)),
    "score scale × 1.1": scores(lambda s, a, i: 1.1 * s),
}
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def mxfp4(w):
    """`w [experts, out, in]` to e2m1 codes `[experts, out, in / 32, 32]` and e8m0 scales, `[experts, out, in / 32]`."""
    blocks = w.unflatten(-1, (-1, 32))
    e = blocks.abs().amax(-1).clamp(min=1e-30).log2().floor() - 2
    scaled = blocks / 2.0 ** e[..., None]
    codes = (scaled.abs()[..., None] - MAGNITUDES).abs().argmin(-1) + 8 * (scaled < 0)
    return codes.to(torch.uint8), (e + 127).to(torch.uint8)


def from_mxfp4(codes, scales):
    values = MAGNITUDES[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    return (values * 2.0 ** (scales.float() - 127)[..., None]).flatten(-2)


def liven_gpt(name, p, normal):
    if name.endswith("sinks"):
        normal(p, 1.0, 1.0)
    elif name.endswith(("gate_up_proj", "down_proj")):
        # Wide enough that gates meet their limit.
        normal(p, (6.0 if "gate_up" in name else 1.0) / math.sqrt(p.shape[1]))
    elif name.endswith("gate_up_proj_bias"):
        normal(p, 1.0)
    else:
        return False
    return True


def liven_blocks(name, p, normal):
    """The same, in numbers that MXFP4 has."""
    done = liven_gpt(name, p, normal)
    if name.endswith(("gate_up_proj", "down_proj")):
        p.copy_(from_mxfp4(*mxfp4(p.transpose(1, 2))).transpose(1, 2))
    return done


def write_bf16(model, folder):
    was = {name: p.detach().clone() for name, p in model.state_dict().items()}
    model.to(torch.bfloat16).save_pretrained(folder)
    model.float().load_state_dict(was)
    rewrite(folder, lambda c: {**c, "dtype": "bfloat16"})


def write_blocks(model, folder):
    """As openai/gpt-oss-20b is stored: experts in blocks and scales, the rest in bf16, rope in the older form."""
    write_bf16(model, folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        codes, scales = mxfp4(tensors.pop(name).float().transpose(1, 2))
        tensors[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
        tensors[name + "_scales"] = scales.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    older_rope(folder)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    more = dict(swiglu_limit=7.0, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=kept))
    rewrite(folder, lambda c: {**c, **more})


def read_blocks(folder, dtype):
    model = t.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=dtype, quantization_config=t.Mxfp4Config(dequantize=True)
    )
    return eager(model.to(dtype).eval())


CASES = {
    "mixtral": moe(config=mixtral(), features={**COMMON, **HALVES, **RENORMALIZED}, publish=older_rope),
    "mixtral-window": moe(
        config=mixtral(sliding_window=24, tie_word_embeddings=True),
        features={**COMMON, **HALVES, **RENORMALIZED, **ONE_WINDOW},
        publish=stacked,
    ),
    "qwen2-moe": moe(
        config=qwen2(mlp_only_layers=[0], norm_topk_prob=False),
        features={**COMMON, **HALVES, **SHARED, **RAW},
        publish=older_rope,
    ),
    "qwen2-moe-sparse": moe(
        config=qwen2(decoder_sparse_step=2, norm_topk_prob=True, use_sliding_window=True, sliding_window=24, max_window_layers=1),
        features={**COMMON, **HALVES, **SHARED, **RENORMALIZED, **WINDOW},
        publish=stacked,
    ),
    "qwen3-moe": moe(
        config=qwen3(norm_topk_prob=True),
        features={**COMMON, **HALVES, **RENORMALIZED, **QK_NORM},
        publish=older_rope,
    ),
    "qwen3-moe-raw": moe(
        config=qwen3(norm_topk_prob=False, mlp_only_layers=[1], use_sliding_window=True, sliding_window=24, attention_bias=True),
        features={**COMMON, **HALVES, **RAW, **QK_NORM, **ONE_WINDOW},
        publish=stacked,
    ),
    "gpt-oss": moe(config=gpt_oss, model=gpt_oss_model, features=GPT_OSS, liven=liven_gpt, write=write_bf16),
    "gpt-oss-mxfp4": moe(config=gpt_oss, model=gpt_oss_model, features=GPT_OSS, liven=liven_blocks, write=write_blocks, read=read_blocks),
}
