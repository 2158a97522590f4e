"""Builds every config of tests/models/configs at full size without weights, by the first guest that takes it.

    python tests/golden/full_size.py GUEST.wasm …

Needs `pip install wasmtime` beside torch.
"""

import json
import pathlib
import sys

import torch

import guest

CONFIGS = pathlib.Path(__file__).parent.parent / "models" / "configs"


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
    guests = [guest.Guest(p) for p in sys.argv[1:]]
    for path in sorted(CONFIGS.glob("*.json")):
        full_size(guests, path)
