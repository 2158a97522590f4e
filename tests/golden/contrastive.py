"""Contrastive search (Su et al. 2022) in plain PyTorch on golden models, in f32; transformers 5 no longer has it.

    python tests/golden/contrastive.py

Writes `contrastive.json`, read by `host/server/tests/numerics`:

    cases[].model, .prompt, .penalty_alpha, .top_k, .max_new_tokens, .end_tokens
    cases[].tokens                 generated
    cases[].gap                    least distance of the best two scores of a step, and of candidates from those left out

and `guests/samplers/contrastive/testdata/replay.json`, what the model says after each prefix that the first case looks at:

    vocab, search
    prefixes[].generated, .tokens, .logits, .log_sum_exp, .hidden

The rule is the paper's, argmax over the top_k of (1 - alpha) · p - alpha · max cosine similarity of hidden states, with what the
guest's documentation says of it: the states before are those of the prompt's last token and of what was generated since; an end
token is passed over unless it is the likeliest, which then ends; the last token is the likeliest. Hidden states are what the logits head reads.
"""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
REPLAY = HERE.parent.parent / "guests/samplers/contrastive/testdata/replay.json"
PROMPT = [5, 17, 90, 33, 8]
NEW_TOKENS = 10
CASES = [
    ("qwen3", dict(penalty_alpha=0.6, top_k=4)),
    ("qwen3", dict(penalty_alpha=0.2, top_k=8)),
    ("llama", dict(penalty_alpha=0.6, top_k=4)),
    ("llama", dict(penalty_alpha=0.3, top_k=6)),
]


class Rows:
    """Logits and hidden state after a prefix."""

    def __init__(self, model):
        self.model, self.rows = model, {}

    def __call__(self, generated):
        if generated not in self.rows:
            with torch.no_grad():
                ids = torch.tensor([[*PROMPT, *generated]])
                out = self.model(ids, output_hidden_states=True, use_cache=False)
            self.rows[generated] = out.logits[0, -1].double(), out.hidden_states[-1][0, -1].double()
        return self.rows[generated]


def search(rows, end_tokens, penalty_alpha, top_k):
    generated, states, gap = (), [rows(())[1]], float("inf")
    while True:
        logits, _ = rows(generated)
        p = logits.softmax(-1)
        order = p.argsort(descending=True).tolist()
        if order[0] in end_tokens or len(generated) == NEW_TOKENS - 1:
            return [*generated, order[0]], min(gap, (p[order[0]] - p[order[1]]).item())
        order = [token for token in order if token not in end_tokens]
        gap = min(gap, (p[order[top_k - 1]] - p[order[top_k]]).item())
        scores = []
        for token in order[:top_k]:
            state = rows((*generated, token))[1]
            likeness = max(torch.cosine_similarity(state, other, dim=0).item() for other in states)
            scores.append(((1 - penalty_alpha) * p[token].item() - penalty_alpha * likeness, token))
        scores.sort(reverse=True)
        gap = min(gap, scores[0][0] - scores[1][0])
        generated = (*generated, scores[0][1])
        states.append(rows(generated)[1])


def main():
    torch.set_num_threads(1)
    cases, replay = [], None
    for name, setting in CASES:
        model = AutoModelForCausalLM.from_pretrained(
            HERE / "cases" / name, attn_implementation="eager", dtype=torch.float32
        ).eval()
        rows = Rows(model)
        # One that is never the likeliest, but often among the likely.
        end_tokens = [rows(())[0].argsort(descending=True)[1].item()]
        tokens, gap = search(rows, end_tokens, **setting)
        print(name, setting, end_tokens, tokens, f"{gap:.1e}")
        case = dict(model=name, prompt=PROMPT, **setting, max_new_tokens=NEW_TOKENS, end_tokens=end_tokens)
        cases.append(case | dict(tokens=tokens, gap=gap))
        if replay is None:
            replay = rows.rows
    with open(HERE / "contrastive.json", "w") as file:
        file.write('{"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n")
    prefixes = []
    for generated, (logits, state) in replay.items():
        best = logits.topk(cases[0]["top_k"] + len(cases[0]["end_tokens"]))
        prefixes.append(
            dict(
                generated=list(generated),
                tokens=best.indices.tolist(),
                logits=[round(x, 6) for x in best.values.tolist()],
                log_sum_exp=round(torch.logsumexp(logits, -1).item(), 6),
                hidden=[round(x, 5) for x in state.tolist()],
            )
        )
    REPLAY.parent.mkdir(exist_ok=True)
    with open(REPLAY, "w") as file:
        lines = ",\n".join(json.dumps(prefix) for prefix in prefixes)
        file.write(f'{{"vocab": {len(logits)}, "search": {json.dumps(cases[0])}, "prefixes": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
