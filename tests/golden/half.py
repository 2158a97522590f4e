"""How far transformers' own 16-bit runs of the golden models are from their float32 logits: the measure for ours.

Needs torch and transformers; reads the model folders and their golden.json; writes half.json: per model and type the largest and the mean
difference of log-probabilities over all recorded rows."""

import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent


@torch.no_grad()
def errors(folder, dtype):
    golden = json.loads((folder / "golden.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
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
    found = {}
    for folder in sorted(p.parent for p in HERE.glob("*/golden.json")):
        assert errors(folder, torch.float32)["largest"] < 1e-5, folder
        found[folder.name] = {name: errors(folder, getattr(torch, name)) for name in ("bfloat16", "float16")}
        print(folder.name, found[folder.name])
    (HERE / "half.json").write_text(json.dumps(found, indent=1) + "\n")
