"""What `mutate.py` takes out of models of transformers: functions of a model, which may give a function that undoes them."""

import sys

import torch
from torch import nn


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
        mixed = getattr(model.config, "layer_types", None) is not None
        return was(ids, attention_mask=kinds if mixed else mask, **kwargs)

    model.forward = forward


def patched(name, by):
    """Function `name` of the model's module through `by(function)`."""

    def mutate(model):
        module = sys.modules[type(model).__module__]
        was = getattr(module, name)
        setattr(module, name, by(was))
        return lambda: setattr(module, name, was)

    return mutate


def no_mask(was):
    def mask(inputs_embeds, **kwargs):
        n = inputs_embeds.shape[1]
        return torch.zeros(1, 1, n, n)

    return mask


def stacked_rows(ends, heads, kv_heads):
    """Fused QKV weights, which go by key head, read as all queries, all keys, all values."""

    def by_head(w):
        d = len(w) // (heads + 2 * kv_heads)
        parts = w.split([heads * d, kv_heads * d, kv_heads * d])
        return torch.cat([p.reshape(kv_heads, -1, *w.shape[1:]) for p in parts], 1).reshape(w.shape)

    def mutate(model):
        for name, p in model.named_parameters():
            if name.endswith((f"{ends}.weight", f"{ends}.bias")):
                p.copy_(by_head(p))

    return mutate


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
NO_MASK = {"causal mask": patched("create_causal_mask", no_mask)}  # where a 4-D mask does not pass the model's forward
WINDOW = {
    "window": window(lambda w: 10_000),
    "window + 1": window(lambda w: w + 1),
    "window − 1": window(lambda w: w - 1),
}
QK_NORM = {"norm of Q": no_qk_norm("q_norm"), "norm of K": no_qk_norm("k_norm")}


def rope_config(**changes):
    """Another rope in all layers: `rope_parameters` with `changes`, each a value or a function of the old one."""

    def mutate(model):
        p = dict(model.config.rope_parameters)
        for key, by in changes.items():
            p[key] = by(p[key]) if callable(by) else by
        model.config.rope_parameters = p
        rope = model.model.rotary_emb
        model.model.rotary_emb = type(rope)(model.config)

    return mutate


def whole_heads_rotate(model):
    for a in attentions(model):
        if hasattr(a, "rotary_ndims"):
            a.rotary_ndims = a.head_dim
    rope_config(partial_rotary_factor=1.0)(model)


def halves(model):
    """Pairs i with i + d/2 instead of 2i with 2i + 1: the opposite of `interleaved`."""
    module = sys.modules[type(model).__module__]
    was = module.rotate_half
    module.rotate_half = lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return lambda: setattr(module, "rotate_half", was)


def each(kind, change):
    """`change(module)` in each module whose class is called so at the end."""

    def mutate(model):
        found = [m for m in model.modules() if type(m).__name__.endswith(kind)]
        assert found, kind
        for m in found:
            change(m)

    return mutate


def config_field(**fields):
    """Fields of the config that the forward pass reads."""

    def mutate(model):
        for key, value in fields.items():
            assert hasattr(model.config, key), key
            setattr(model.config, key, value)

    return mutate
