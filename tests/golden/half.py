"""How far the 16-bit runs of transformers, or of the reference, of the golden models are from the float32 logits: the measure for ours.

    python tests/golden/half.py [case …]

Needs torch and transformers; reads the cases; writes `half.json` beside each golden.json: per type the largest and the mean
difference of log-probabilities over all recorded rows."""

import json
import sys

import torch
import transformers

from case import CASES_DIR, chosen


@torch.no_grad()
def errors(case, folder, dtype):
    golden = json.loads((folder / "golden.json").read_text())
    model = case.read(folder, dtype)
    differences = []
    for prompt in golden["prompts"]:
        logits = model(torch.tensor([prompt["ids"]])).logits[0].double()
        for position, reference in zip(prompt["positions"], prompt["logits"]):
            expected = torch.log_softmax(torch.tensor(reference).double(), -1)
            differences.append((torch.log_softmax(logits[position], -1) - expected).abs())
    all_of_them = torch.cat(differences)
    return dict(largest=round(all_of_them.max().item(), 6), mean=round(all_of_them.mean().item(), 6))


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, case in chosen(sys.argv[1:]):
        folder = CASES_DIR / name
        assert errors(case, folder, torch.float32)["largest"] < 1e-5, folder
        found = {dtype: errors(case, folder, getattr(torch, dtype)) for dtype in ("bfloat16", "float16")}
        print(name, found)
        (folder / "half.json").write_text(json.dumps(found, indent=1) + "\n")
