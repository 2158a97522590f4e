"""What a golden case is, and what all of them share.

A fresh model has zero biases, unit norms and nearly flat logits, which hide mistakes. So biases and norms are random here,
attention scores are spread, and the final norm is scaled until the logits' standard deviation is TARGET_STD.
"""

import dataclasses
import importlib
import json
import math
import pathlib
import typing

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
CASES_DIR = HERE / "cases"
TARGET_STD = 2.0
LENGTHS = [5, 1, 23, 70]  # 70 is more than the windows and than three KV blocks of 16
STEPS = 8
CLEAR = 20  # least gap of the best two in greedy steps, in tolerances

# Sizes that most configs take; `small(…)` is for new cases.
COMMON = dict(
    vocab_size=199,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    attn_implementation="eager",
    dtype="float32",
)


def small(**more):
    """COMMON, but smaller: 130 to 250 KB a case."""
    return {**COMMON, "vocab_size": 131, "hidden_size": 48, "intermediate_size": 80, **more}


def from_config(config):
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def from_folder(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()


def is_norm(name):
    return name.endswith("norm.weight") or "layernorm" in name or "_norm." in name or ".ln_" in name


def final_norm(model):
    return model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm


@dataclasses.dataclass
class Case:
    """One golden case. All but `config` and `features` have defaults that fit a Llama of transformers."""

    # () → config of transformers, or of a reference.
    config: typing.Callable
    # What mutate.py takes out: {name: model → None or a function that undoes it}. May be a function that gives the dict.
    features: typing.Any
    # config → model, f32, eval, `model(ids [1, n], use_cache=False).logits [1, n, vocab]`.
    model: typing.Callable = from_config
    # (folder, dtype) → what `model` made, from the files.
    read: typing.Callable = from_folder
    # (model, folder): writes config.json and model.safetensors; none is save_pretrained.
    write: typing.Callable | None = None
    # folder: rewrites what was written the way that published checkpoints are, if `read` still takes it.
    publish: typing.Callable | None = None
    is_norm: typing.Callable = is_norm
    # model → module with a weight, and perhaps a bias, that scales the logits; or None, then liven(…) must spread them.
    final_norm: typing.Callable = final_norm
    # Norms add 1 to their weight, as Gemma's do: true, or a function of the parameter's name.
    zero_centred: typing.Any = False
    # (name, parameter, normal) → whether it set the parameter; `normal(p, std, mean=0)` draws.
    liven: typing.Callable | None = None
    # Ends of names of embedding tables.
    embeddings: tuple = ("embed_tokens.weight", "wte.weight", "wpe.weight", "word_embeddings.weight")
    # Linear weights are [in, out].
    conv1d: bool = False
    # Ends of names of Q and K projections, whose weights are doubled to spread the scores.
    sharp: tuple = ("q_proj.weight", "k_proj.weight")
    # Ends of names of parameters that cannot move a logit; say why where you list them.
    inert: tuple = ()
    # (model, ids) → the next STEPS tokens and the least gap of the best two; none is make.greedy.
    greedy: typing.Callable | None = None
    lengths: list = dataclasses.field(default_factory=lambda: list(LENGTHS))
    # (config, ids) → ids: what every prompt of the family has, such as marks that it needs; as many.
    prompt: typing.Callable | None = None

    def centre(self, name):
        zero = self.zero_centred(name) if callable(self.zero_centred) else self.zero_centred
        return 0.0 if zero else 1.0


def every_case():
    """{name: Case} of all families."""
    found = {}
    for path in sorted((HERE / "families").glob("*.py")):
        cases = getattr(importlib.import_module(f"families.{path.stem}"), "CASES", {})
        assert not found.keys() & cases.keys(), path
        found |= cases
    return found


def chosen(names):
    """[(name, Case)] for the names, or for all."""
    cases = every_case()
    unknown = set(names) - set(cases)
    if unknown:
        raise SystemExit(f"no golden case is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(cases))}")
    return [(name, cases[name]) for name in names or cases]


@torch.no_grad()
def liven(case, model, seed):
    rng = torch.Generator().manual_seed(seed)
    normal = lambda p, std, mean=0.0: p.copy_(torch.randn(p.shape, generator=rng) * std + mean)
    buffers = [b for b in model.named_buffers() if b[0].endswith("correction_bias")]
    for name, p in [*model.named_parameters(), *buffers]:
        if case.liven and case.liven(name, p, normal):
            continue
        if name.endswith("bias"):
            normal(p, 0.4)
        elif case.is_norm(name):
            normal(p, 0.4, case.centre(name))
        elif name.endswith(case.embeddings):
            normal(p, 0.5)
        elif p.dim() < 2:
            normal(p, 0.4)
        else:
            fan_in = p.shape[0] if case.conv1d and "lm_head" not in name else p.shape[-1]
            normal(p, (2.0 if name.endswith(case.sharp) else 1.0) / math.sqrt(fan_in))
            if name.endswith("c_attn.weight") and case.conv1d:
                p[:, : 2 * p.shape[0]] *= 2  # Q and K, as above
    norm = case.final_norm(model)
    if norm is None:
        return
    # A pre-norm model's logits are linear in the final norm, but for soft caps, so a few rounds are enough.
    shift = 1.0 - case.centre("final")
    for _ in range(20):
        std = torch.cat([logits(model, ids) for ids in prompts(case, model)]).std().item()
        by = TARGET_STD / std
        norm.weight.copy_((norm.weight + shift) * by - shift)
        if getattr(norm, "bias", None) is not None:
            norm.bias.mul_(by)


def prompts(case, model):
    rng = torch.Generator().manual_seed(1234)
    drawn = [torch.randint(3, model.config.vocab_size, (n,), generator=rng) for n in case.lengths]
    return [case.prompt(model.config, ids) for ids in drawn] if case.prompt else drawn


@torch.no_grad()
def logits(model, ids):
    """`[tokens, vocab]`, whole sequence at once, no cache."""
    return model(ids[None], use_cache=False).logits[0].float()


def tolerance(rows):
    return 1e-4 * max(1.0, rows.abs().max().item())


def recorded_positions(n):
    """All of a short prompt, the last three of a longer one."""
    return list(range(n)) if n <= 5 else list(range(n - 3, n))


def rewrite(folder, change):
    """config.json through `change(dict)`, which may alter or replace it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(change(config) or config, indent=2) + "\n")


def older_rope(folder):
    """Rope in the form of transformers 4, which most published configs have."""

    def change(c):
        p = c.pop("rope_parameters")
        c["rope_theta"] = p.pop("rope_theta")
        if "partial_rotary_factor" in p:
            c["partial_rotary_factor"] = p.pop("partial_rotary_factor")
        c["rope_scaling"] = p if p["rope_type"] != "default" else None

    rewrite(folder, change)
