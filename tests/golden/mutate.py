"""Shows that the golden cases notice mistakes: takes one feature at a time out of the model and measures how far the logits
move. Each must move at least 100 tolerances; the table is `mutations.md` of each case.

    python tests/golden/mutate.py [case …]
"""

import copy
import sys

import torch
import transformers

from case import CASES_DIR, chosen, logits, prompts, recorded_positions, tolerance

LEAST = 100


def parameters(case, model):
    """Each bias to zero, each norm's weight to what a fresh model has."""
    for name, p in model.named_parameters():
        if name.endswith(case.inert):
            continue
        if name.endswith("c_attn.bias") and case.conv1d and len(p) % 3 == 0:
            n = len(p) // 3
            for i, part in enumerate("qkv"):
                if part != "k":  # q · b_k is the same for every key where nothing rotates, so softmax does not see it
                    yield f"{name} ({part})", fill(name, 0.0, slice(i * n, (i + 1) * n))
        elif name.endswith("bias"):
            yield name, fill(name, 0.0)
        elif case.is_norm(name):
            yield name, fill(name, case.centre(name))


def fill(name, value, where=slice(None)):
    return lambda model: model.get_parameter(name)[where].fill_(value)


@torch.no_grad()
def mutate(name, case):
    """Writes the table; returns what moved too little."""
    model = case.read(CASES_DIR / name, torch.float32)
    ids = prompts(case, model)
    wanted = [logits(model, x) for x in ids]
    tol = tolerance(torch.cat([w[recorded_positions(len(w))] for w in wanted]))
    lines = [
        f"# {name}: what each feature is worth",
        "",
        "Made by `mutate.py`: the largest change of any recorded logit when one feature is taken out of the model, in",
        f"tolerances. Every one is at least {LEAST}, so a server that got it wrong would fail this case.",
        "",
        "| Without or with | tolerances |",
        "|---|---:|",
    ]
    weak = []
    features = case.features() if callable(case.features) else case.features
    for what, change in [*features.items(), *parameters(case, model)]:
        mutant = copy.deepcopy(model)
        undo = change(mutant)
        moved = 0.0
        for x, w in zip(ids, wanted):
            keep = recorded_positions(len(x))
            moved = max(moved, (logits(mutant, x)[keep] - w[keep]).abs().max().item() / tol)
        if callable(undo):
            undo()
        lines.append(f"| {what} | {moved:,.0f} |")
        if not moved >= LEAST:
            weak.append(f"{name}: {what}: {moved:.1f}")
    (CASES_DIR / name / "mutations.md").write_text("\n".join(lines) + "\n")
    return weak


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    weak = [line for name, case in chosen(sys.argv[1:]) for line in mutate(name, case)]
    print("\n".join(weak) or "all count")
    sys.exit(bool(weak))
