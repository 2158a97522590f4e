"""Shows that the golden models notice mistakes: takes one feature at a time out of the transformers model and measures how
far the logits move. Each must move at least 100 tolerances; the table is `mutations.md`.

    python tests/golden/mutate.py
"""

import copy
import sys

import torch
import transformers
from torch import nn

import make

LEAST = 100


def rope_modules(model):
    return [m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding")]


def attentions(model):
    return [m for m in model.modules() if type(m).__name__.endswith("Attention")]


def no_rope(model):
    for rope in rope_modules(model):
        was = rope.forward

        def flat(*args, was=was, **kwargs):
            cos, sin = was(*args, **kwargs)
            return torch.ones_like(cos), torch.zeros_like(sin)

        rope.forward = flat


def frequencies(by):
    """Each frequency buffer through `by(name, tensor)`."""

    def mutate(model):
        for rope in rope_modules(model):
            for name, buffer in list(rope.named_buffers()):
                if name.endswith("inv_freq"):
                    buffer.copy_(by(name, buffer, model.config))

    return mutate


def plain_frequencies(name, buffer, config):
    theta = config.rope_parameters["rope_theta"]
    d = 2 * len(buffer)
    return 1.0 / theta ** (torch.arange(0, d, 2).float() / d)


def interleaved(model):
    """Pairs 2i with 2i + 1 instead of i with i + d/2."""
    module = sys.modules[type(model).__module__]
    was = module.rotate_half
    module.rotate_half = lambda x: torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return lambda: setattr(module, "rotate_half", was)


def tiled_heads(model):
    """Query head i reads key head i mod kv instead of i div (heads / kv)."""
    module = sys.modules[type(model).__module__]
    was = module.repeat_kv
    module.repeat_kv = lambda x, n: x.repeat(1, n, 1, 1)
    return lambda: setattr(module, "repeat_kv", was)


def window(by):
    def mutate(model):
        model.config.sliding_window = by(model.config.sliding_window)
        for a in attentions(model):
            if getattr(a, "sliding_window", None):
                a.sliding_window = model.config.sliding_window

    return mutate


def scores(by):
    def mutate(model):
        for i, a in enumerate(attentions(model)):
            a.scaling = by(a.scaling, a, i)

    return mutate


def activation(f):
    def mutate(model):
        for m in model.modules():
            for name in ("act_fn", "act"):
                if hasattr(m, name):
                    setattr(m, name, f)

    return mutate


def set_attr(path, value):
    def mutate(model):
        *way, last = path.split(".")
        for step in way:
            model = getattr(model, step)
        setattr(model, last, value)

    return mutate


def no_qk_norm(which):
    def mutate(model):
        for a in attentions(model):
            setattr(a, which, nn.Identity())

    return mutate


def swap_local_and_global(model):
    (rope,) = rope_modules(model)
    a, b = rope.sliding_attention_inv_freq.clone(), rope.full_attention_inv_freq.clone()
    rope.sliding_attention_inv_freq.copy_(b)
    rope.full_attention_inv_freq.copy_(a)


def no_embed_scale(model):
    model.model.embed_tokens.embed_scale.fill_(1.0)


def all_see_all(model):
    """No causal mask."""
    was = model.forward

    def forward(ids, **kwargs):
        n = ids.shape[1]
        mask = torch.zeros(1, 1, n, n)
        kinds = {"full_attention": mask, "sliding_attention": mask}
        mixed = model.config.model_type in ("gemma3_text", "qwen2", "qwen3")
        return was(ids, attention_mask=kinds if mixed else mask, **kwargs)

    model.forward = forward


def parameters(model):
    """Each bias to zero, each norm's weight to what a fresh model has."""
    fresh = 0.0 if make.zero_centred(model) else 1.0
    for name, p in model.named_parameters():
        if name.endswith("c_attn.bias"):
            n = len(p) // 3
            for i, part in enumerate("qkv"):
                if part != "k":  # q · b_k is the same for every key where nothing rotates, so softmax does not see it
                    yield f"{name} ({part})", fill(name, 0.0, slice(i * n, (i + 1) * n))
        elif name.endswith("bias"):
            yield name, fill(name, 0.0)
        elif make.is_norm(name):
            yield name, fill(name, fresh)


def fill(name, value, where=slice(None)):
    return lambda model: model.get_parameter(name)[where].fill_(value)


ROPE = {
    "rope": no_rope,
    "rope base ÷ 4": frequencies(lambda name, f, c: f ** (torch.log(make_base(c) / 4) / torch.log(make_base(c)))),
    "rope pairs": interleaved,
}


def make_base(config):
    p = config.rope_parameters
    return torch.tensor(float(p["rope_theta"] if "rope_theta" in p else p["sliding_attention"]["rope_theta"]))


GQA = {"heads of K and V": tiled_heads}
SILU = {"activation (ReLU)": activation(nn.ReLU()), "score scale × 1.1": scores(lambda s, a, i: 1.1 * s)}
CAUSAL = {"causal mask": all_see_all}
WINDOW = {
    "window": window(lambda w: 10_000),
    "window + 1": window(lambda w: w + 1),
    "window − 1": window(lambda w: w - 1),
}
QK_NORM = {"norm of Q": no_qk_norm("q_norm"), "norm of K": no_qk_norm("k_norm")}

FEATURES = {
    "llama": {**ROPE, **GQA, **SILU, **CAUSAL},
    "llama-rope3": {**ROPE, "llama3 scaling": frequencies(plain_frequencies), **GQA, **SILU, **CAUSAL},
    "mistral": {**ROPE, **WINDOW, **GQA, **SILU, **CAUSAL},
    "qwen2": {**ROPE, **WINDOW, "window from layer 0": lambda m: windows_from_0(m), **GQA, **SILU, **CAUSAL},
    "qwen3": {**ROPE, **QK_NORM, **GQA, **SILU, **CAUSAL},
    "gpt2": {
        "learned positions": lambda m: m.transformer.wpe.weight.zero_(),
        "score scale": scores(lambda s, a, i: s * a.head_dim**0.5),
        "score scale by layer": scores(lambda s, a, i: s * (i + 1)),
        "activation (ReLU)": activation(nn.ReLU()),
        **CAUSAL,
    },
    "gemma3": {
        **{k: v for k, v in ROPE.items() if "base" not in k},
        "linear scaling": frequencies(lambda name, f, c: f * 8 if name.startswith("full") else f),
        "local and global rope": swap_local_and_global,
        **WINDOW,
        **QK_NORM,
        **GQA,
        "query_pre_attn_scalar": scores(lambda s, a, i: a.head_dim**-0.5),
        "embedding scale": no_embed_scale,
        "final soft cap": lambda m: setattr(m.config, "final_logit_softcapping", None),
        "activation (ReLU)": activation(nn.ReLU()),
        **CAUSAL,
    },
}


def windows_from_0(model):
    model.config.layer_types = ["sliding_attention"] * model.config.num_hidden_layers
    for a in attentions(model):
        a.sliding_window = model.config.sliding_window
    for layer in model.model.layers:
        layer.attention_type = "sliding_attention"


@torch.no_grad()
def main():
    lines = [
        "# What each feature is worth",
        "",
        "Made by `mutate.py`: the largest change of any recorded logit when one feature is taken out of the transformers",
        f"model, in tolerances. Every one is at least {LEAST}, so a server that got it wrong would fail its golden test.",
        "",
    ]
    weak = []
    for name in make.NAMES:
        model = make.load(name)
        ids = make.prompts(model)
        wanted = [make.logits(model, x) for x in ids]
        tolerance = make.tolerance(torch.cat(wanted))
        lines += [f"## {name}", "", "| Without or with | tolerances |", "|---|---:|"]
        for what, mutate in [*FEATURES[name].items(), *parameters(model)]:
            mutant = copy.deepcopy(model)
            undo = mutate(mutant)
            moved = 0.0
            for x, w in zip(ids, wanted):
                # The positions that golden.json records.
                keep = slice(0, None) if len(x) <= 5 else slice(-3, None)
                moved = max(moved, (make.logits(mutant, x)[keep] - w[keep]).abs().max().item() / tolerance)
            if callable(undo):
                undo()
            lines.append(f"| {what} | {moved:,.0f} |")
            if not moved >= LEAST:
                weak.append(f"{name}: {what}: {moved:.1f}")
        lines.append("")
    (make.HERE / "mutations.md").write_text("\n".join(lines))
    print("\n".join(weak) or "all count")
    return bool(weak)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sys.exit(main())
