"""Makes the golden cases: tiny random checkpoints with what Hugging Face transformers, or a plain reference, computes for them.

    python tests/golden/make.py [case …]

Needs torch and transformers (made with torch 2.11 and transformers 5.17). Cases stand in `families/`; each folder in `cases/` is
a Hugging Face model folder with a `golden.json` beside it:

    prompts[].ids        token ids of a prompt
    prompts[].positions  positions whose logits are recorded: all of a short prompt, the last three of a longer one
    prompts[].logits     one row per position, f32 rounded to 9 significant digits, which is exact
    prompts[].greedy     the next 8 tokens, greedily
    prompts[].gap        least distance of the best two logits in those 8 steps
    std                  standard deviation of all recorded logits
    tolerance            1e-4 · max(1, max |logit|)

`mutate.py` shows that each feature counts.
"""

import json
import math
import shutil
import sys

import torch
import transformers
from transformers import GenerationConfig

from case import CASES_DIR, CLEAR, STEPS, chosen, liven, logits, prompts, recorded_positions, tolerance


@torch.no_grad()
def greedy(model, ids):
    """Next tokens and the least gap of the best two; the cached path of `generate` must agree, where there is one."""
    seq, gap = ids, math.inf
    for _ in range(STEPS):
        best = logits(model, seq)[-1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        seq = torch.cat([seq, best.indices[:1]])
    out = seq[len(ids) :].tolist()
    if hasattr(model, "generate"):
        cached = model.generate(
            ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, max_new_tokens=STEPS, min_new_tokens=STEPS,
            eos_token_id=None, pad_token_id=0,
        )[0, len(ids) :].tolist()
        assert out == cached, (out, cached)
    return out, gap


def round9(x):
    return float(f"{x:.9g}")


def make(name, case):
    model = case.model(case.config())
    greedily = case.greedy or greedy
    # The first seed that leaves no greedy step in doubt.
    for seed in range(100):
        liven(case, model, seed)
        rows = torch.cat([logits(model, ids) for ids in prompts(case, model)])
        least = min(greedily(model, ids)[1] for ids in prompts(case, model))
        if least > CLEAR * tolerance(rows):
            break
    folder = CASES_DIR / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if case.write:
        case.write(model, folder)
    else:
        model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2)
        model.save_pretrained(folder)
    if case.publish:
        case.publish(folder)
    # What is recorded is what the files say.
    model = case.read(folder, torch.float32)
    recorded = []
    for ids in prompts(case, model):
        rows, positions = logits(model, ids), recorded_positions(len(ids))
        out, gap = greedily(model, ids)
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, case in chosen(sys.argv[1:]):
        make(name, case)
