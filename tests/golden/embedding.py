"""Makes the golden embedding model: a tiny random Qwen3 with the files of sentence-transformers that make it one.

    python tests/golden/embedding.py                 makes `embeddings/qwen3-embedding`
    python tests/golden/embedding.py GUEST.wasm      compares what a guest builds with it

Needs torch and transformers; the comparison also `pip install wasmtime`. The folder has the layout of Qwen/Qwen3-Embedding-0.6B: no
prefix before the names of weights, `modules.json`, and `1_Pooling/config.json`. `golden.json` beside them:

    prompts[].ids      token ids of a prompt
    prompts[].vector   the last hidden state at its last token, divided by its length, f32 rounded to 9 significant digits
    tolerance          1e-4, of vectors of length 1

The vectors are those of each prompt alone; a batch padded on the left gives the same, which is checked.
"""

import json
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers as t
from safetensors.torch import load_file, save_file

import case as golden

FOLDER = golden.HERE / "embeddings" / "qwen3-embedding"
LENGTHS = [5, 1, 23, 70, 12, 41]
TOLERANCE = 1e-4


def config():
    return t.Qwen3Config(**golden.small(), head_dim=16, tie_word_embeddings=True)


@torch.no_grad()
def vector(model, ids):
    return F.normalize(model.model(ids[None], use_cache=False).last_hidden_state[0, -1], dim=-1)


@torch.no_grad()
def padded(model, prompts):
    longest = max(len(ids) for ids in prompts)
    ids = torch.stack([F.pad(ids, (longest - len(ids), 0)) for ids in prompts])
    mask = torch.stack([F.pad(torch.ones_like(ids), (longest - len(ids), 0)) for ids in prompts])
    return F.normalize(model.model(ids, attention_mask=mask, use_cache=False).last_hidden_state[:, -1], dim=-1)


def make():
    case = golden.Case(config=config, features={})
    model = golden.from_config(config())
    golden.liven(case, model, 0)
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    path = FOLDER / "model.safetensors"
    tensors = {k.removeprefix("model."): v.contiguous() for k, v in load_file(path).items() if not k.startswith("lm_head")}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [dict(idx=i, name=str(i), path=p, type=f"sentence_transformers.models.{n}") for i, (p, n) in enumerate(names)]
    write = lambda name, value: (FOLDER / name).write_text(json.dumps(value, indent=2) + "\n")
    write("modules.json", modules)
    (FOLDER / "1_Pooling").mkdir()
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    pooling = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    write("1_Pooling/config.json", {"word_embedding_dimension": 48, **pooling, "include_prompt": True})

    rng = torch.Generator().manual_seed(4321)
    prompts = [torch.randint(3, model.config.vocab_size, (n,), generator=rng) for n in LENGTHS]
    vectors = torch.stack([vector(model, ids) for ids in prompts])
    assert (padded(model, prompts) - vectors).abs().max() < TOLERANCE / 10
    # What a server could get wrong moves every vector by far more than the tolerance.
    with torch.no_grad():
        hidden = [model.model(ids[None], use_cache=False).last_hidden_state[0] for ids in prompts]
    mean = torch.stack([F.normalize(h.mean(0), dim=-1) for h in hidden])
    first = torch.stack([F.normalize(h[0], dim=-1) for h in hidden])
    moved = lambda other: (other - vectors).abs().amax(1)[[len(ids) > 1 for ids in prompts]].min() / TOLERANCE
    assert moved(mean) > 100 and moved(first) > 100 and moved(torch.stack([h[-1] for h in hidden])) > 100
    write_golden(prompts, vectors)
    print(f"{FOLDER.name}: {path.stat().st_size} bytes, mean pooling moves {moved(mean):,.0f} tolerances")


def write_golden(prompts, vectors):
    recorded = [
        dict(ids=ids.tolist(), vector=[float(f"{x:.9g}") for x in v.tolist()]) for ids, v in zip(prompts, vectors)
    ]
    made_with = dict(torch=torch.__version__.split("+")[0], transformers=t.__version__)
    doc = dict(made_with=made_with, tolerance=TOLERANCE, prompts=recorded)
    (FOLDER / "golden.json").write_text(json.dumps(doc) + "\n")


def compare(path):
    import guest

    read = lambda name: json.loads((FOLDER / name).read_text())
    config = read("config.json") | {"guesthouse": {"embedding": {"pooling": "last", "normalize": True}}}
    tensors, model, worst = load_file(FOLDER / "model.safetensors"), guest.Guest(path), 0.0
    for prompt in read("golden.json")["prompts"]:
        b = guest.Builder(tensors, prompt["ids"])
        model.build(b, config)
        worst = max(worst, (b.pooled - torch.tensor(prompt["vector"])).abs().max().item())
    unused = set(tensors) - b.used
    print(f"{FOLDER.name}: worst difference {worst:.2g}, tolerance {TOLERANCE:.2g}")
    assert worst <= TOLERANCE and not unused, unused


if __name__ == "__main__":
    torch.set_num_threads(1)
    t.logging.set_verbosity_error()
    compare(sys.argv[1]) if len(sys.argv) > 1 else make()
