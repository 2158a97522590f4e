"""Makes `samplers.json`: what the logits processors of Hugging Face transformers make of small rows.

    python tests/golden/samplers.py

Needs torch and transformers (5.17). Read by host/device/src/cpu/sample/tests/golden.rs. `cases[]`:

    stage       name of the stage, and `values` its numbers in the order of the stage's fields
    tokens      history
    logits      the row, f32
    processed   what the processor makes of it; null is -inf
"""

import json
import pathlib

import torch
import transformers as t

torch.set_num_threads(1)
torch.manual_seed(7)

OUT = pathlib.Path(__file__).parent / "samplers.json"
VOCAB = 40


def rows():
    """Peaked, ordinary and nearly flat rows; some with tokens that are gone already."""
    for scale in [6.0, 2.0, 0.3]:
        for holes in [0, 15]:
            row = torch.randn(VOCAB) * scale
            row[torch.randperm(VOCAB)[:holes]] = -torch.inf
            yield row


def main():
    processors = [
        ("temperature", [0.7], t.TemperatureLogitsWarper(0.7)),
        ("top-k", [5], t.TopKLogitsWarper(5)),
        ("top-p", [0.8], t.TopPLogitsWarper(0.8)),
        ("min-p", [0.1], t.MinPLogitsWarper(0.1)),
        ("typical-p", [0.5], t.TypicalLogitsWarper(0.5)),
        ("epsilon", [0.02], t.EpsilonLogitsWarper(0.02)),
        ("eta", [0.03], t.EtaLogitsWarper(0.03)),
        ("eta", [0.5], t.EtaLogitsWarper(0.5)),
        ("n-gram", [1], t.NoRepeatNGramLogitsProcessor(1)),
        ("n-gram", [2], t.NoRepeatNGramLogitsProcessor(2)),
        ("n-gram", [3], t.NoRepeatNGramLogitsProcessor(3)),
        ("repetition", [1.4], t.RepetitionPenaltyLogitsProcessor(1.4)),
        ("bad-words", [], t.NoBadWordsLogitsProcessor([[3], [1, 2], [2, 1, 7]], eos_token_id=0)),
        ("bias", [], t.SequenceBiasLogitsProcessor([[[4], -2.5], [[9], 1.25]])),
    ]
    histories = [[5], [1, 2, 3, 1, 2, 4, 2, 1], [7, 7, 7], [1, 2, 9, 8, 1, 2, 1]]
    cases = []
    for name, values, processor in processors:
        by_history = name in ["n-gram", "repetition", "bad-words"]
        for row in rows():
            for history in histories if by_history else histories[:1]:
                out = processor(torch.tensor([history]), row[None].clone())[0]
                numbers = [None if x == -torch.inf else x for x in out.tolist()]
                logits = [None if x == -torch.inf else x for x in row.tolist()]
                cases.append(dict(stage=name, values=values, tokens=history, logits=logits, processed=numbers))
    lines = ",\n".join(json.dumps(round_case(c)) for c in cases)
    OUT.write_text(f'{{"transformers": "{t.__version__}", "cases": [\n{lines}\n]}}\n')


def round_case(case):
    digits = lambda list: [None if x is None else float(f"{x:.9g}") for x in list]
    return case | {key: digits(case[key]) for key in ["logits", "processed"]}


if __name__ == "__main__":
    main()
