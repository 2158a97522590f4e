"""Builds the sketches of unusual architectures: at full size without weights, for every config in tests/models/configs, and
at toy size against transformers, for those that transformers has.

    python tests/golden/sketches.py GUEST.wasm … 

Needs `pip install wasmtime` beside torch and transformers. Each config is given to the first guest that takes it.
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import case as golden
import guest

CONFIGS = golden.HERE.parent / "models" / "configs"
# Of full size, but no guest builds them so far.
WITHOUT_GUEST = {"mixtral-8x7b"}
COMMON = {k: v for k, v in golden.COMMON.items() if k not in ("attn_implementation", "dtype")}


def toys():
    t = transformers
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
    yield "GptOssForCausalLM", t.GptOssConfig(
        **COMMON, head_dim=16, sliding_window=20, num_local_experts=8, num_experts_per_tok=3, rope_parameters={**yarn, "truncate": False},
    )


@torch.no_grad()
def liven(model):
    rng = torch.Generator().manual_seed(3)
    for name, p in list(model.named_parameters()) + [b for b in model.named_buffers() if b[0].endswith("correction_bias")]:
        noise = torch.randn(p.shape, generator=rng)
        if golden.is_norm(name) or "norm" in name:
            p.copy_(noise * 0.3 + 1.0)
        elif "embed" in name or "wte" in name:
            p.copy_(noise * 0.5)
        elif p.dim() == 1 or "bias" in name or "sinks" in name:
            p.copy_(noise * 0.3)
        else:
            p.copy_(noise / p.shape[-1] ** 0.5 * 1.3)


@torch.no_grad()
def toy(sketches, architecture, config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    liven(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
        tensors = load_file(pathlib.Path(folder) / "model.safetensors")
    assert written["architectures"] == [architecture], written["architectures"]
    worst, top, spread = 0.0, 0.0, 0.0
    for n in (5, 70):
        ids = torch.randint(3, 199, (n,), generator=torch.Generator().manual_seed(n))
        wanted = model(ids[None], use_cache=False).logits[0]
        b = guest.Builder(tensors, ids)
        sketches.build(b, written)
        worst = max(worst, (b.logits - wanted).abs().max().item())
        top, spread = max(top, wanted.abs().max().item()), wanted.std().item()
    unused = set(tensors) - b.used
    print(f"{architecture}: {b.calls} calls, worst difference {worst:.2g} of {top:.3g}, std {spread:.2f}, unused {sorted(unused)}")
    assert worst <= 1e-4 * max(1, top) and not unused and spread > 0.3


class Shapes(guest.Builder):
    """Full size on torch's meta device: shapes without numbers."""

    def __init__(self, ids):
        super().__init__(None, ids, fill=lambda name, shape: torch.empty(list(shape), device="meta"))
        self.bytes = 0

    def has_param(self, name):
        # What only some checkpoints of an architecture carry.
        return not name.endswith((".bias", "rope_freqs.weight"))

    def experts(self, x, weights, ids, params):
        t, e = self.v(x), self.w(getattr(params, "gate-up"))
        n, rows, hidden = e.shape
        self.check(hidden == t.shape[1] and list(self.w(params.down).shape) == [n, hidden, rows // 2], "experts", e.shape)
        return self.value(torch.empty_like(t))

    def delta_rule(self, q, k, v, g, beta, cache, scale):
        q, k, v, g, beta = (self.v(t) for t in (q, k, v, g, beta))
        self.check(q.shape == k.shape and q.shape[:2] == v.shape[:2] == g.shape == beta.shape, "delta", q.shape, v.shape)
        self.check(self.caches[cache.id].kind.payload == 4 * q.shape[1] * q.shape[2] * v.shape[2], "state")
        return self.value(torch.empty_like(v))


def full_size(guests, path):
    config = json.loads(path.read_text())
    with torch.device("meta"):
        b = Shapes(torch.zeros(3, dtype=torch.long))
        if "gmask_token_id" in config:
            b.ids = torch.tensor([5, config["gmask_token_id"], config["bos_token_id"]], device="cpu")
        for g in guests:
            try:
                info = g.build(b, config)
                break
            except guest.Refused as e:
                if "architectures is" not in str(e):
                    raise
        else:
            raise AssertionError(f"no guest takes {path.name}")
    vocab = getattr(info, "vocab-size")
    assert list(b.logits.shape) == [3, vocab], b.logits.shape
    kinds = {}
    for c in b.caches:
        key = (c.kind.tag, c.kind.payload, getattr(c, "kv-heads"), getattr(c, "k-dim"))
        kinds[key] = kinds.get(key, 0) + 1
    print(f"{path.stem}: {info.architecture}, {b.calls} calls, {len(b.values)} values, caches {kinds}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    guests = [guest.Guest(p) for p in sys.argv[1:]]
    for path in sorted(CONFIGS.glob("*.json")):
        if path.stem not in WITHOUT_GUEST:
            full_size(guests, path)
    for architecture, config in toys():
        for g in guests:
            try:
                toy(g, architecture, config)
                break
            except guest.Refused as e:
                if "architectures is" not in str(e):
                    raise
