"""Evaluates what a model guest builds, slowly and plainly, with torch: one sequence, whole, no cache.

    python tests/golden/guest.py GUEST.wasm [model …]     compares a guest with golden models

An oracle for guests and for the meaning of each op that depends on nothing of the host: the ops are written from the
comments in wit/graph/builder.wit. Needs `pip install wasmtime` beside torch.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
import wasmtime
import wasmtime.component as wc
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
BUILDER = "guesthouse:graph/builder@0.1.0"
MODEL = "guesthouse:graph/model@0.1.0"
LOG = "guesthouse:common/log@0.1.0"


def record(**fields):
    r = wc.Record()
    r.__dict__.update(fields)
    return r


class Refused(Exception):
    """The guest answered with an error."""


class Builder:
    """Each method is a function of the interface; values and weights are torch tensors behind ids.

    `tensors` is the checkpoint. None makes one up: every `param` exists with the shape asked for, filled by `fill`.
    """

    def __init__(self, tensors, ids, fill=None):
        self.tensors, self.fill, self.ids = tensors, fill, torch.as_tensor(ids)
        self.values, self.weights, self.caches = [], [], []
        self.written, self.used, self.scopes, self.calls = {}, set(), [], 0
        self.here, self.logits, self.pooled = "", None, None

    # Helpers

    def v(self, x):
        return self.values[x.id]

    def w(self, x):
        return self.weights[x.id]

    def value(self, t):
        self.values.append(t)
        return record(id=len(self.values) - 1)

    def weight(self, t):
        self.weights.append(t)
        return record(id=len(self.weights) - 1)

    def check(self, ok, *what):
        if not ok:
            raise AssertionError(f"in {self.here}: {what}")

    @property
    def n(self):
        return len(self.ids)

    # Facts and weights

    def has_param(self, name):
        return self.tensors is None or name in self.tensors

    def param_shape(self, name):
        return list(self.tensors[name].shape) if self.tensors and name in self.tensors else None

    def param(self, name, shape):
        if self.tensors is None:
            return self.weight(self.fill(name, shape))
        self.check(name in self.tensors, "no tensor", name)
        self.used.add(name)
        t = self.tensors[name].float()
        self.check(list(t.shape) == list(shape), name, list(t.shape), shape)
        return self.weight(t)

    def constant(self, shape, data):
        return self.weight(torch.tensor(data).reshape(list(shape)))

    def rows(self, of, start, len):
        self.check(start + len <= self.w(of).shape[0], "rows", start, len, self.w(of).shape)
        return self.weight(self.w(of)[start : start + len])

    def select_rows(self, of, index):
        return self.weight(self.w(of)[torch.tensor(index)])

    def concat_rows(self, of):
        return self.weight(torch.cat([self.w(x) for x in of]))

    def transpose(self, of):
        return self.weight(self.w(of).transpose(-1, -2))

    def reshape_weight(self, of, shape):
        return self.weight(self.w(of).reshape(list(shape)))

    def scale_weight(self, of, by):
        return self.weight(self.w(of) * by)

    def normalize_rows(self, of, eps):
        w = self.w(of)
        return self.weight(w / (w.norm(dim=-1, keepdim=True) + eps))

    def dequantize(self, of):
        return of

    def declare_cache(self, spec):
        self.caches.append(spec)
        return record(id=len(self.caches) - 1)

    # Inputs

    def token_ids(self):
        return self.value(self.ids)

    def positions(self, scheme):
        p = torch.arange(self.n)
        # wasmtime hands over a variant whose payloads differ in type as the bare payload.
        match scheme:
            case None:  # standard
                return self.value(p)
            case int(offset):
                return self.value(p + offset)
            case (mask, gmask, bos):
                ids = self.ids.tolist()
                begin = ids.index(bos)
                at = ids.index(gmask if gmask in ids else mask)
                pos, block = p.clone(), torch.zeros_like(p)
                pos[begin:] = at
                block[begin:] = torch.arange(1, self.n - begin + 1)
                return self.value(torch.stack([pos, block], -1))
        raise NotImplementedError(scheme)

    def weight_value(self, w):
        return self.value(self.w(w)[None])

    # Ops

    def embedding(self, table, ids):
        return self.value(self.w(table)[self.v(ids)])

    def linear(self, x, w, bias, sharding):
        self.check(self.v(x).dim() == 2 and self.v(x).shape[1] == self.w(w).shape[1], self.v(x).shape, self.w(w).shape)
        return self.value(F.linear(self.v(x), self.w(w), None if bias is None else self.w(bias)))

    def rms_norm(self, x, w, params):
        t = self.v(x)
        t = t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + params.eps)
        return self.value(t if w is None else t * (self.w(w) + params.offset))

    def layer_norm(self, x, w, bias, eps):
        t = self.v(x)
        t = F.layer_norm(t, t.shape[-1:], eps=eps)
        t = t if w is None else t * self.w(w)
        return self.value(t if bias is None else t + self.w(bias))

    def l2_norm(self, x, eps):
        t = self.v(x)
        return self.value(t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + eps))

    def rope(self, x, positions, params):
        t, d = self.v(x).clone(), params.rotary
        self.check(t.dim() == 3 and params.start + d <= t.shape[2] and d % 2 == 0, "rope", t.shape, params.start, d)
        p = self.v(positions)
        p = (p[:, params.axis] if p.dim() == 2 else p).float()
        inv = 1.0 / params.theta ** (torch.arange(0, d, 2).float() / d)
        inv, by = self.scaled(inv, params, d)
        angle = p[:, None, None] * inv
        cos, sin = angle.cos() * by, angle.sin() * by
        part = t[..., params.start : params.start + d]
        if params.style == "neox":
            a, b = part[..., : d // 2], part[..., d // 2 :]
            part = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = part[..., 0::2], part[..., 1::2]
            part = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        t[..., params.start : params.start + d] = part
        return self.value(t)

    def scaled(self, inv, params, d):
        kind = params.scaling.tag
        s = getattr(params.scaling, "payload", None)
        match kind:
            case "none":
                return inv, 1.0
            case "linear":
                return inv / s, 1.0
            case "factors":
                return inv / self.w(s), 1.0
            case "dynamic":
                factor, original = s
                length = max(self.n, original)
                base = params.theta * ((factor * length / original) - (factor - 1)) ** (d / (d - 2))
                return 1.0 / base ** (torch.arange(0, d, 2).float() / d), 1.0
            case "dynamic-qwen":
                by = max(2 ** math.ceil(math.log2(self.n / s) + 1) - 1, 1)
                base = params.theta * by ** (d / (d - 2))
                return 1.0 / base ** (torch.arange(0, d, 2).float() / d), 1.0
            case "llama3":
                wave = 2 * math.pi / inv
                smooth = (s.original / wave - s.low) / (s.high - s.low)
                mid = (1 - smooth) * inv / s.factor + smooth * inv
                out = torch.where(wave > s.original / s.low, inv / s.factor, mid)
                return torch.where(wave < s.original / s.high, inv, out), 1.0
            case "yarn":
                dim = lambda turns: d * math.log(s.original / (turns * 2 * math.pi)) / (2 * math.log(params.theta))
                low, high = dim(getattr(s, "beta-fast")), dim(getattr(s, "beta-slow"))
                if s.truncate:
                    low, high = math.floor(low), math.ceil(high)
                low, high = max(low, 0), min(high, d - 1)
                high += 0.001 if low == high else 0
                keep = 1 - ((torch.arange(d // 2).float() - low) / (high - low)).clamp(0, 1)
                return inv / s.factor * (1 - keep) + inv * keep, getattr(s, "attention-factor")
            case "longrope":
                factors = s.long if self.n > s.original else s.short
                return inv / torch.tensor(factors), getattr(s, "attention-factor")
        raise NotImplementedError(kind)

    def scores_to_output(self, scores, v, params):
        """`scores [heads, n, n]`, `v [heads, n, d]`"""
        n, softcap = self.n, params.softcap
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(n)[None] - torch.arange(n)[:, None]  # key − query
        if params.alibi is not None:
            scores = scores + self.w(params.alibi)[:, None, None] * distance
        visible = distance <= 0
        if params.mask.tag == "prefix-lm":
            visible = torch.ones(n, n, dtype=bool)
        elif params.mask.tag == "prefix-before":
            ids = self.ids.tolist()
            visible = visible | (torch.arange(n) < (ids + [params.mask.payload]).index(params.mask.payload))[None]
        if params.window is not None:
            visible &= distance > -params.window
        scores = scores.masked_fill(~visible, -math.inf)
        if params.sinks is not None:
            sinks = self.w(params.sinks)[:, None, None].expand(-1, n, 1)
            return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1] @ v
        return torch.softmax(scores, -1) @ v

    def attention(self, q, k, v, cache, params):
        spec, k, v = self.caches[cache.id], self.v(k), self.v(v)
        self.check(cache.id not in self.written, "cache written twice")
        self.check(list(k.shape[1:]) == [getattr(spec, "kv-heads"), getattr(spec, "k-dim")], k.shape)
        self.check(list(v.shape[1:]) == [getattr(spec, "kv-heads"), getattr(spec, "v-dim")], v.shape)
        self.check(spec.kind.tag == "full" or spec.kind.payload == params.window, "window differs from cache")
        self.written[cache.id] = (k, v)
        return self.attend(self.v(q), k, v, params)

    def attention_shared(self, q, cache, params):
        return self.attend(self.v(q), *self.written[cache.id], params)

    def attend(self, q, k, v, params):
        times = q.shape[1] // k.shape[1]
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        k, v = k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)
        return self.value(self.scores_to_output(q @ k.mT * params.scale, v, params).transpose(0, 1))

    def latent_attention(self, q, latent, k_rope, kv_b, cache, params):
        q, latent, k_rope = self.v(q), self.v(latent), self.v(k_rope)
        heads, nope, vd = q.shape[1], params.nope, getattr(params, "v-dim")
        kv = F.linear(latent, self.w(kv_b)).view(self.n, heads, nope + vd)
        k = torch.cat([kv[..., :nope], k_rope[:, None].expand(-1, heads, -1)], -1)
        plain = record(mask=wc.Variant("causal"), window=None, softcap=None, alibi=None, sinks=None, scale=params.scale)
        return self.attend(q, k, kv[..., nope:], plain)

    def activate(self, x, kind):
        return self.value(ACT[kind](self.v(x)))

    def gate(self, gate, up, kind):
        if isinstance(kind, str):
            return ACT[kind](gate) * up
        alpha, limit = kind
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)

    def gated(self, gate, up, kind):
        return self.value(self.gate(self.v(gate), self.v(up), kind))

    def add(self, a, b):
        return self.value(self.v(a) + self.v(b))

    def mul(self, a, b):
        return self.value(self.v(a) * self.v(b))

    def scale(self, x, by):
        return self.value(self.v(x) * by)

    def clamp(self, x, min, max):
        return self.value(self.v(x).clamp(min, max))

    def soft_cap(self, x, cap):
        return self.value(cap * torch.tanh(self.v(x) / cap))

    def log_n_scale(self, x, positions, train_len):
        t = self.v(x)
        by = (torch.log(self.v(positions).float() + 1) / math.log(train_len)).clamp(min=1)
        return self.value(t * by.view([-1] + [1] * (t.dim() - 1)))

    def cast(self, x, to):
        return self.value(self.v(x))

    def split(self, x, axis, sizes):
        return [self.value(t) for t in self.v(x).split(list(sizes), axis + 1)]

    def slice(self, x, axis, start, len):
        return self.value(self.v(x).narrow(axis + 1, start, len))

    def concat(self, xs, axis):
        return self.value(torch.cat([self.v(x) for x in xs], axis + 1))

    def reshape(self, x, shape):
        return self.value(self.v(x).reshape([self.v(x).shape[0], *shape]))

    def swap_axes(self, x):
        return self.value(self.v(x).transpose(1, 2))

    def repeat_heads(self, x, times):
        return self.value(self.v(x).repeat_interleave(times, 1))

    def route(self, logits, params):
        t, k = self.v(logits), getattr(params, "top-k")
        scores = {"softmax": lambda t: t.softmax(-1), "sigmoid": torch.sigmoid, "softmax-of-chosen": lambda t: t}[params.scores](t)
        choose = scores if params.correction is None else scores + self.w(params.correction)
        if (g := params.groups) is not None:
            by_group = choose.view(len(t), g.count, -1)
            best = by_group.topk(getattr(g, "sum-of"), -1).values.sum(-1).topk(g.top, -1).indices
            keep = torch.zeros(len(t), g.count, dtype=bool).scatter(1, best, True)
            choose = by_group.masked_fill(~keep[..., None], -math.inf).flatten(1)
        ids = choose.topk(k, -1).indices
        weights = scores.gather(1, ids)
        if params.scores == "softmax-of-chosen":
            weights = weights.softmax(-1)
        if params.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return (self.value(weights * params.scale), self.value(ids))

    def experts(self, x, weights, ids, params):
        t, weights, ids = self.v(x), self.v(weights), self.v(ids)
        gate_up, down = self.w(getattr(params, "gate-up")), self.w(params.down)
        bias = lambda name, e: 0 if getattr(params, name) is None else self.w(getattr(params, name))[e]
        out = torch.zeros_like(t)
        for e in ids.unique().tolist():
            row, slot = (ids == e).nonzero(as_tuple=True)
            h = t[row] @ gate_up[e].T + bias("gate-up-bias", e)
            gate, up = h.chunk(2, -1) if params.layout == "halves" else (h[:, 0::2], h[:, 1::2])
            h = self.gate(gate, up, params.gate) @ down[e].T + bias("down-bias", e)
            out.index_add_(0, row, h * weights[row, slot, None])
        return self.value(out)

    def causal_conv(self, x, w, bias, cache, kind):
        t, w = self.v(x), self.w(w)
        width = w.shape[1]
        padded = torch.cat([torch.zeros(width - 1, t.shape[1]), t])
        out = sum(padded[i : i + self.n] * w[:, i] for i in range(width))
        out = out if bias is None else out + self.w(bias)
        return self.value(out if kind is None else ACT[kind](out))

    def delta_rule(self, q, k, v, g, beta, cache, scale):
        q, k, v, g, beta = (self.v(t) for t in (q, k, v, g, beta))
        state, out = torch.zeros(k.shape[1], k.shape[2], v.shape[2]), []
        for i in range(self.n):
            state = state * g[i].exp()[:, None, None]
            update = beta[i][:, None] * (v[i] - torch.einsum("hkv,hk->hv", state, k[i]))
            state = state + torch.einsum("hk,hv->hkv", k[i], update)
            out.append(torch.einsum("hkv,hk->hv", state, q[i] * scale))
        return self.value(torch.stack(out))

    def custom(self, op, inputs, weights, attrs):
        raise NotImplementedError(op)

    def has_custom(self, op):
        return False

    # Outputs

    def gather_outputs(self, x):
        return x

    def output_logits(self, logits):
        self.logits = self.v(logits)

    def output_embedding(self, x, pooling, normalize):
        t = self.v(x)
        t = t[-1] if pooling == "last" else t.mean(0)
        self.pooled = F.normalize(t, dim=-1) if normalize else t

    def scope(self, name):
        self.here = name
        self.scopes.append(name)


ACT = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "exp": torch.exp,
}


class Guest:
    """A component file, compiled once."""

    def __init__(self, path):
        self.engine = wasmtime.Engine()
        self.component = wc.Component.from_file(self.engine, str(path))

    def imports(self):
        return sorted(self.component.type.imports(self.engine).keys())

    @torch.no_grad()
    def build(self, builder, config):
        """Runs `build`; the logits are then in the builder. Returns the model info."""
        store, linker = wasmtime.Store(self.engine), wc.Linker(self.engine)
        lines, failed = [], []

        def adapter(method):
            def call(_, *args):
                builder.calls += 1
                try:
                    return method(*args)
                except Exception as e:  # a trap hides what was raised
                    failed.append(e)
                    raise

            return call

        with linker.root() as root:
            with root.add_instance(LOG) as log:
                log.add_func("log", lambda _, level, message: lines.append(message))
            with root.add_instance(BUILDER) as i:
                for name, method in vars(Builder).items():
                    if callable(method) and not name.startswith("_") and name not in HELPERS:
                        i.add_func(name.replace("_", "-"), adapter(getattr(builder, name)))
        instance = linker.instantiate(store, self.component)
        model = instance.get_export_index(store, MODEL)
        run = instance.get_func(store, instance.get_export_index(store, "build", model))
        try:
            answer = run(store, json.dumps(config))
        except Exception as e:
            raise failed[0] if failed else RuntimeError(f"{e} {lines}")
        if isinstance(answer, wc.Variant):
            raise Refused(f"{answer.tag}: {answer.payload}")
        return answer


HELPERS = {"v", "w", "value", "weight", "check", "scores_to_output", "attend", "gate", "scaled"}


def joined(tensors):
    """MXFP4 in two parts as the one tensor that a guest asks for (OCP Microscaling Formats 1.0)."""
    e2m1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    e2m1 = torch.cat([e2m1, -e2m1])
    for name in [n.removesuffix("_blocks") for n in tensors if n.endswith("_blocks")]:
        blocks, scales = tensors.pop(name + "_blocks"), tensors.pop(name + "_scales")
        pairs = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
        tensors[name] = (e2m1[pairs.long()] * 2.0 ** (scales.float() - 127)[..., None]).flatten(-2)
    return tensors


def compare(guest, name):
    folder = HERE / "cases" / name
    golden = json.loads((folder / "golden.json").read_text())
    config, tensors = json.loads((folder / "config.json").read_text()), joined(load_file(folder / "model.safetensors"))
    worst = 0.0
    for prompt in golden["prompts"]:
        b = Builder(tensors, prompt["ids"])
        guest.build(b, config)
        ours = b.logits[prompt["positions"]]
        worst = max(worst, (ours - torch.tensor(prompt["logits"])).abs().max().item())
    unused = set(tensors) - b.used
    print(f"{name}: {b.calls} calls, {len(b.caches)} caches, worst difference {worst:.2g}, tolerance {golden['tolerance']:.2g}")
    assert worst <= golden["tolerance"], name
    assert not unused, unused


if __name__ == "__main__":
    torch.set_num_threads(1)
    guest = Guest(sys.argv[1])
    print(*guest.imports())
    for name in sys.argv[2:]:
        compare(guest, name)
