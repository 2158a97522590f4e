"""The invented architecture in plain Python: a checkpoint of random weights, and what it says. Float64, one token at a
time, nothing shared with the guest."""
import json, math, random, struct

CONFIG = {
    "architectures": ["SandwichForCausalLM"], "vocab_size": 96, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "eos_token_id": 95, "torch_dtype": "float32",
}
V, H, F, L = (CONFIG[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"))
HEADS, KV, D = 4, 2, 8


def shapes():
    """Tensor names with [out, in] or [width]."""
    yield "sandwich.embed.weight", (V, H)
    for i in range(L):
        at = f"sandwich.layers.{i}."
        for norm in ("attn_in", "attn_out", "mlp_in", "mlp_out"):
            yield f"{at}{norm}.weight", (H,)
        yield f"{at}attn.qkv.weight", ((HEADS + 2 * KV) * D, H)
        yield f"{at}attn.qkv.bias", ((HEADS + 2 * KV) * D,)
        yield f"{at}attn.out.weight", (H, HEADS * D)
        yield f"{at}up.weight", (F, H)
        yield f"{at}down.weight", (H, F)
    yield "sandwich.norm.weight", (H,)
    yield "sandwich.head.weight", (V, H)


def single(x):
    """Rounded to what a checkpoint in float32 holds."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def weights(seed):
    rnd = random.Random(seed)
    tensors = {}
    for name, shape in shapes():
        count = math.prod(shape)
        norm = name.split(".")[-2] in ("attn_in", "attn_out", "mlp_in", "mlp_out", "norm")
        draw = (lambda: 1 + rnd.gauss(0, 0.3)) if norm else (lambda: rnd.gauss(0, 1 if "embed" in name else 0.35))
        tensors[name] = (shape, [single(draw()) for _ in range(count)])
    return tensors


def save(folder, tensors):
    """config.json, model.safetensors and a tokenizer whose tokens are the characters from space on."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    vocab = {chr(32 + i): i for i in range(V - 1)} | {"<end>": V - 1}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": {"type": "Fuse"},
        "added_tokens": [{"id": V - 1, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }))


class Model:
    """Keeps keys and values of the tokens so far, per layer."""

    def __init__(self, tensors):
        self.w, self.past = tensors, [[] for _ in range(L)]

    def linear(self, name, x):
        (out, width), w = self.w[name + ".weight"]
        bias = self.w.get(name + ".bias", (0, [0.0] * out))[1]
        return [bias[o] + sum(w[o * width + i] * x[i] for i in range(width)) for o in range(out)]

    def norm(self, name, x):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + CONFIG["rms_norm_eps"])
        return [v * scale * w for v, w in zip(x, self.w[name + ".weight"][1])]

    def attention(self, layer, name, x):
        qkv = self.linear(name + ".qkv", x)
        head = lambda i: qkv[i * D : (i + 1) * D]
        self.past[layer].append(([head(HEADS + j) for j in range(KV)], [head(HEADS + KV + j) for j in range(KV)]))
        out = []
        for h in range(HEADS):
            j = h // (HEADS // KV)
            scores = [sum(a * b for a, b in zip(head(h), k[j])) / math.sqrt(D) for k, _ in self.past[layer]]
            top = max(scores)
            p = [math.exp(s - top) for s in scores]
            out += [sum(a * v[j][e] for a, (_, v) in zip(p, self.past[layer])) / sum(p) for e in range(D)]
        return self.linear(name + ".out", out)

    def step(self, token):
        """Log-probabilities of the next token."""
        add = lambda a, b: [u + v for u, v in zip(a, b)]
        x = self.w["sandwich.embed.weight"][1][token * H : (token + 1) * H]
        for i in range(L):
            at = f"sandwich.layers.{i}."
            h = self.attention(i, at + "attn", self.norm(at + "attn_in", x))
            x = add(x, self.norm(at + "attn_out", h))
            h = [max(v, 0.0) ** 2 for v in self.linear(at + "up", self.norm(at + "mlp_in", x))]
            x = add(x, self.norm(at + "mlp_out", self.linear(at + "down", h)))
        logits = self.linear("sandwich.head", self.norm("sandwich.norm", x))
        top = max(logits)
        total = top + math.log(sum(math.exp(v - top) for v in logits))
        return [v - total for v in logits]

    def greedy(self, prompt, count):
        """(token, log-probabilities) of `count` steps."""
        said = [self.step(token) for token in prompt][-1]
        for _ in range(count):
            best = max(range(V), key=said.__getitem__)
            yield best, said
            said = self.step(best)
