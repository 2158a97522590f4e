"""Makes the golden models: tiny random checkpoints with what Hugging Face transformers computes for them.

    python tests/golden/make.py [name …]

Needs torch and transformers (made with torch 2.11 and transformers 5.17). Each folder is a Hugging Face model folder with
a `golden.json` beside it:

    prompts[].ids        token ids of a prompt
    prompts[].positions  positions whose logits are recorded: all of a short prompt, the last three of a longer one
    prompts[].logits     one row per position, f32 rounded to 9 significant digits, which is exact
    prompts[].greedy     the next 8 tokens, greedily
    prompts[].gap        least distance of the best two logits in those 8 steps
    std                  standard deviation of all recorded logits
    tolerance            1e-4 · max(1, max |logit|)

A fresh model has zero biases, unit norms and nearly flat logits, which hide mistakes. So biases and norms are random here,
attention scores are spread, and the final norm is scaled until the logits' standard deviation is TARGET_STD.
`mutate.py` shows that each feature counts.
"""

import json
import math
import pathlib
import shutil
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

HERE = pathlib.Path(__file__).parent
TARGET_STD = 2.0
LENGTHS = [5, 1, 23, 70]  # 70 is more than the windows below and than three KV blocks of 16
STEPS = 8
CLEAR = 20  # least gap of the best two in greedy steps, in tolerances

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


def config(name):
    t = transformers
    match name:
        case "llama":
            return t.LlamaConfig(**COMMON, tie_word_embeddings=False)
        case "llama-rope3":
            rope = dict(
                rope_type="llama3",
                rope_theta=5000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            )
            return t.LlamaConfig(
                **COMMON, head_dim=32, attention_bias=True, mlp_bias=True, rope_parameters=rope, tie_word_embeddings=True
            )
        case "mistral":
            return t.MistralConfig(**COMMON, head_dim=32, sliding_window=24, tie_word_embeddings=False)
        case "qwen2":
            return t.Qwen2Config(
                **COMMON,
                use_sliding_window=True,
                sliding_window=24,
                max_window_layers=1,
                rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                tie_word_embeddings=True,
            )
        case "qwen3":
            return t.Qwen3Config(**COMMON, head_dim=32, tie_word_embeddings=False)
        case "gpt2":
            return t.GPT2Config(
                vocab_size=199,
                n_embd=64,
                n_layer=3,
                n_head=4,
                n_positions=128,
                n_inner=None,
                scale_attn_by_inverse_layer_idx=True,
                bos_token_id=1,
                eos_token_id=2,
                attn_implementation="eager",
                dtype="float32",
            )
        case "gemma3":
            return t.Gemma3TextConfig(
                **{**COMMON, "num_hidden_layers": 4},
                head_dim=32,
                query_pre_attn_scalar=20,
                sliding_window=20,
                layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                rope_parameters=dict(
                    sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                    full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                ),
                final_logit_softcapping=5.0,
                tie_word_embeddings=True,
            )
    raise SystemExit(f"no golden model is called {name}; there are {', '.join(NAMES)}")


NAMES = ["llama", "llama-rope3", "mistral", "qwen2", "qwen3", "gpt2", "gemma3"]


def is_norm(name):
    return name.endswith("norm.weight") or "layernorm" in name or "_norm." in name or ".ln_" in name


def final_norm(model):
    return model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm


def zero_centred(model):
    """Gemma's norms add 1 to their weight."""
    return model.config.model_type.startswith("gemma")


@torch.no_grad()
def liven(model, seed):
    rng = torch.Generator().manual_seed(seed)
    normal = lambda p, std, mean=0.0: p.copy_(torch.randn(p.shape, generator=rng) * std + mean)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            normal(p, 0.4)
        elif is_norm(name):
            normal(p, 0.4, 0.0 if zero_centred(model) else 1.0)
        elif any(s in name for s in ("embed_tokens", "wte", "wpe")):
            normal(p, 0.5)
        else:
            # Conv1D weights are [in, out], linear ones [out, in].
            fan_in = p.shape[0] if model.config.model_type == "gpt2" and "lm_head" not in name else p.shape[1]
            normal(p, (2.0 if any(s in name for s in ("q_proj", "k_proj")) else 1.0) / math.sqrt(fan_in))
            if name.endswith("c_attn.weight"):
                p[:, : 2 * p.shape[0]] *= 2  # Q and K, as above
    # A pre-norm model's logits are linear in the final norm, but for the cap of Gemma, so a few rounds are enough.
    for _ in range(20):
        std = torch.cat([logits(model, ids) for ids in prompts(model)]).std().item()
        norm, shift = final_norm(model), 1.0 if zero_centred(model) else 0.0
        by = TARGET_STD / std
        norm.weight.copy_((norm.weight + shift) * by - shift)
        if getattr(norm, "bias", None) is not None:
            norm.bias.mul_(by)


def prompts(model):
    rng = torch.Generator().manual_seed(1234)
    return [torch.randint(3, model.config.vocab_size, (n,), generator=rng) for n in LENGTHS]


@torch.no_grad()
def logits(model, ids):
    """`[tokens, vocab]`, whole sequence at once, no cache."""
    return model(ids[None], use_cache=False).logits[0]


def tolerance(rows):
    return 1e-4 * max(1.0, rows.abs().max().item())


@torch.no_grad()
def greedy(model, ids):
    """Next tokens and the least gap of the best two; the cached path of `generate` must agree."""
    seq, gap = ids, math.inf
    for _ in range(STEPS):
        best = logits(model, seq)[-1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        seq = torch.cat([seq, best.indices[:1]])
    out = seq[len(ids) :].tolist()
    cached = model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS,
        eos_token_id=None, pad_token_id=0,
    )[0, len(ids) :].tolist()
    assert out == cached, (out, cached)
    return out, gap


def round9(x):
    return float(f"{x:.9g}")


def older_rope(folder):
    """Rewrites rope in the form of transformers 4, which most published configs have."""
    path = folder / "config.json"
    c = json.loads(path.read_text())
    p = c.pop("rope_parameters")
    c["rope_theta"] = p.pop("rope_theta")
    c["rope_scaling"] = p if p["rope_type"] != "default" else None
    path.write_text(json.dumps(c, indent=2) + "\n")


def make(name):
    model = AutoModelForCausalLM.from_config(config(name), attn_implementation="eager").float().eval()
    # The first seed that leaves no greedy step in doubt.
    for seed in range(100):
        liven(model, seed)
        rows = torch.cat([logits(model, ids) for ids in prompts(model)])
        least = min(greedy(model, ids)[1] for ids in prompts(model))
        if least > CLEAR * tolerance(rows):
            break
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2)
    model.save_pretrained(folder)
    if name in ("llama-rope3", "qwen2"):
        older_rope(folder)
    # What is recorded is what the files say.
    model = load(name)
    recorded = []
    for ids in prompts(model):
        rows = logits(model, ids)
        n = len(ids)
        positions = list(range(n)) if n <= 5 else list(range(n - 3, n))
        out, gap = greedy(model, ids)
        recorded.append(
            dict(
                ids=ids.tolist(),
                positions=positions,
                logits=[[round9(x) for x in rows[p].tolist()] for p in positions],
                greedy=out,
                gap=round9(gap),
            )
        )
    rows = torch.tensor([row for p in recorded for row in p["logits"]])
    tol = tolerance(rows)
    doc = dict(
        made_with=dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__),
        std=round9(rows.std().item()),
        tolerance=round9(tol),
        prompts=recorded,
    )
    least = min(p["gap"] for p in recorded)
    (folder / "model.safetensors").chmod(0o644)
    assert 1.0 <= doc["std"] <= 4.0, doc["std"]
    assert least > CLEAR * tol, f"{name}: a greedy step is unclear: {least} with tolerance {tol}"
    (folder / "golden.json").write_text(json.dumps(doc) + "\n")
    size = (folder / "model.safetensors").stat().st_size
    print(f"{name}: seed {seed}, std {doc['std']:.3f}, tolerance {tol:.2g}, least gap {least:.4f}, {size} bytes")


def load(name):
    return AutoModelForCausalLM.from_pretrained(HERE / name, attn_implementation="eager", dtype=torch.float32).eval()


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or NAMES:
        make(name)
