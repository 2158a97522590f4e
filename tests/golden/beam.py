"""Records what transformers' beam search returns for golden models, in f32.

    python tests/golden/beam.py

Writes `beam.json`, read by `host/server/tests/numerics/beam.rs`:

    cases[].model                  folder in cases/
    cases[].prompt                 token ids
    cases[].end_tokens             EOS ids: tokens that hypotheses reach early
    cases[].num_beams, .num_return_sequences, .length_penalty, .early_stopping, .max_new_tokens
    cases[].sequences[].tokens     generated, best first, with the EOS token but without padding
    cases[].sequences[].score      `sequences_scores`
    cases[].gap                    least distance of two accumulated log-probabilities that follow one another among the best

and `guests/samplers/beam/testdata/replay.json`, one model's best candidates and log-sum-exp after each prefix that the
searches for one prompt visit, with which the guest's own tests replay those searches:

    vocab                              size of the vocabulary
    prefixes[].generated               token ids after the prompt
    prefixes[].tokens, .logits         best CANDIDATES, best first
    prefixes[].log_sum_exp             of all logits
    searches[]                         as cases[] above

Searches where rounding might decide, with a gap below 1e-4, are left out.
"""

import itertools
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
REPLAY = HERE.parent.parent / "guests/samplers/beam/testdata/replay.json"
MODELS = ["llama", "qwen3", "gpt2"]
PROMPTS = [[5, 17, 90, 33, 8], [101, 4, 4, 77, 12, 60, 3]]
NEW_TOKENS = 12
CANDIDATES = 20
SETTINGS = [
    dict(num_beams=2, num_return_sequences=1, length_penalty=1.0, early_stopping=True),
    dict(num_beams=2, num_return_sequences=2, length_penalty=0.5, early_stopping=False),
    dict(num_beams=3, num_return_sequences=3, length_penalty=2.0, early_stopping=False),
    dict(num_beams=3, num_return_sequences=2, length_penalty=1.0, early_stopping="never"),
    dict(num_beams=4, num_return_sequences=4, length_penalty=1.0, early_stopping=False),
    dict(num_beams=4, num_return_sequences=4, length_penalty=2.0, early_stopping="never"),
    dict(num_beams=4, num_return_sequences=2, length_penalty=0.5, early_stopping=True),
    dict(num_beams=4, num_return_sequences=4, length_penalty=0.0, early_stopping="never"),
    dict(num_beams=3, num_return_sequences=3, length_penalty=-1.0, early_stopping=False),
]


def search(model, prompt, end_tokens, setting):
    """What transformers returns, best first."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=end_tokens,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **setting,
        )
    sequences = []
    for row, score in zip(found.sequences[:, len(prompt):].tolist(), found.sequences_scores.tolist()):
        end = next((i + 1 for i, token in enumerate(row) if token in end_tokens), len(row))
        sequences.append(dict(tokens=row[:end], score=score))
    return sequences


class Recorder:
    """Logits after the prefixes that were asked for."""

    def __init__(self, model, prompt):
        self.model, self.prompt, self.rows = model, prompt, {}

    def logits(self, generated):
        key = tuple(generated)
        if key not in self.rows:
            with torch.no_grad():
                self.rows[key] = self.model(torch.tensor([[*self.prompt, *key]]), use_cache=False).logits[0, -1].float()
        return self.rows[key]


def visit(recorder, end_tokens, setting):
    """A beam search that never stops early, so that it visits all prefixes that one of this width may visit; returns the gap."""
    width = setting["num_beams"]
    kept = max(2, 1 + len(end_tokens)) * width
    running, gap = [((), 0.0)], float("inf")
    for _ in range(NEW_TOKENS):
        continuations = []
        for prefix, before in running:
            best = torch.log_softmax(recorder.logits(prefix), -1).topk(kept + 1)
            continuations += [(before + p, (*prefix, t)) for p, t in zip(best.values.tolist(), best.indices.tolist())]
        continuations.sort(reverse=True)
        scores = [score for score, _ in continuations[: kept + 1]]
        gap = min([gap] + [a - b for a, b in itertools.pairwise(scores)])
        running = [(tokens, score) for score, tokens in continuations[:kept] if tokens[-1] not in end_tokens][:width]
    return gap


def end_tokens_of(model, prompt):
    """Two tokens that the likeliest continuations reach after a few steps."""
    recorder = Recorder(model, prompt)
    found, prefix = [], ()
    for step in range(8):
        best = recorder.logits(prefix).topk(3).indices.tolist()
        if step in (2, 5):
            found.append(best[1 if step == 2 else 2])
        prefix = (*prefix, best[0])
    return sorted(set(found))


def main():
    torch.set_num_threads(1)
    cases, replayed = [], None
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(
            HERE / "cases" / name, attn_implementation="eager", dtype=torch.float32
        ).eval()
        for prompt in PROMPTS:
            ends = end_tokens_of(model, prompt)
            alternatives = [ends[:1], ends][: len(ends)]
            recorder, searches = Recorder(model, prompt), []
            for end_tokens, setting in itertools.product(alternatives, SETTINGS):
                gap = visit(recorder, end_tokens, setting)
                if gap < 1e-4:
                    continue
                case = dict(model=name, prompt=prompt, end_tokens=end_tokens, **setting, max_new_tokens=NEW_TOKENS)
                case |= dict(sequences=search(model, prompt, end_tokens, setting), gap=gap)
                searches.append(case)
            lengths = sorted({len(s["tokens"]) for case in searches for s in case["sequences"]})
            print(f"{name}: {len(searches)} searches, ends {ends}, lengths {lengths}")
            cases += searches
            if replayed is None and len(lengths) > 2:
                replayed = (recorder, searches)
    with open(HERE / "beam.json", "w") as file:
        file.write('{"cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n")
    recorder, searches = replayed
    prefixes = []
    for generated, logits in recorder.rows.items():
        best = logits.topk(CANDIDATES)
        prefixes.append(
            dict(
                generated=list(generated),
                tokens=best.indices.tolist(),
                logits=[round(x, 6) for x in best.values.tolist()],
                log_sum_exp=round(torch.logsumexp(logits, -1).item(), 6),
            )
        )
    REPLAY.parent.mkdir(exist_ok=True)
    with open(REPLAY, "w") as file:
        lines = [",\n".join(json.dumps(x) for x in xs) for xs in (prefixes, searches)]
        file.write(f'{{"vocab": {len(logits)}, "prefixes": [\n{lines[0]}\n], "searches": [\n{lines[1]}\n]}}\n')


if __name__ == "__main__":
    main()
