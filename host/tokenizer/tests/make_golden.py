"""Makes the fixtures and expected values in tests/golden with Hugging Face's tokenizers and with sentencepiece.

    python make_golden.py                  # needs: tokenizers, sentencepiece, protobuf
    python make_golden.py PATH…            # needs: transformers; writes golden.json into each folder with a tokenizer.json,
                                           # and NAME.golden.json beside each NAME.gguf

The tokenizers are trained here on a few sentences, so that they are small; the expected values come from those two libraries.
With folders of real tokenizers, which are too large to keep here, it writes what `tests/real.rs` compares.
"""

import copy
import io
import json
import pathlib
import re
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "golden"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog didn't mind; it's what dogs do.",
    "Hello, how are you today? I'm fine, thanks! We'll see what they've got, and I'd say you're right.",
    "def main():\n    for i in range(10):\n        print(f\"{i}: {i * i}\")\n\n    return 0\n",
    "In 2024, 1234567 people paid $3.50 for 42 apples, 1,000 pears and 99 oranges.",
    "The capital of France is Paris. The capital of Germany is Berlin. The capital of Japan is Tokyo.",
    "Bonjour à tous, où est la bibliothèque? Une déjà vu, naïve, façade.",
    "Der große Fluß überquert die Brücke; schön, daß es hält.",
    "Привет, как дела? Сегодня хорошая погода.",
    "你好，世界！今天天气很好。我们去公园吧。",
    "こんにちは、世界。今日はいい天気ですね。",
    "안녕하세요 세계. 오늘 날씨가 좋아요.",
    "مرحبا بالعالم. كيف حالك اليوم؟",
    "नमस्ते दुनिया। आप कैसे हैं?",
    "<div class=\"a\">text</div> <p>more</p> // comment /* block */ #include <stdio.h>",
    "user assistant system tool function name arguments content role user\nassistant\nsystem\n",
]

TEXTS = [
    "",
    " ",
    "  ",
    "Hello",
    " Hello",
    "Hello world",
    "Hello  world   with    spaces ",
    "\n\nHello\n \nworld\n",
    "\t\ttabs\tand\r\nnewlines\r\n",
    "The quick brown fox jumps over the lazy dog.",
    "I'm you're they've we'll HE'S DON'T it'S don\u2019t 'tis",
    "0 12 345 6789 12345678901234 3.14 1,000,000 \u0663\u0664 \u00b2\u00b3 \u2167",
    "def f(x):\n    if x:\n        return [1, 2]\n\n\nprint(f(3))  # done",
    "http://example.com/a?b=c&d=e#f user@example.org",
    "Bonjour à tous, naïve façade",
    "e\u0301 decomposed and \u00e9 composed, A\u030angstro\u0308m",
    "Привет, мир! ПРИВЕТ",
    "你好，世界！今天天气很好。",
    "こんにちは、世界。カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم 123",
    "नमस्ते दुनिया।",
    "ไทยไม่มีช่องว่าง",
    "😀 😃 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇫🇷 ❤️",
    "mixed🙂text你好with Привет1234and\u200bzero width\u00a0nbsp",
    "\u0000\u0001\u007f\u0085\u2028\ufeff",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff",
    "$%^&*()_+-=[]{}|;':\",./<>?`~",
    "....!!!???---___===///",
    "CamelCaseHTTPServer snake_case SCREAMING_CASE x2y3 McDonald's",
    "▁under ▁▁score ▁",
    "<|im_start|>user\nhi<|im_end|>",
    "<s>[INST] hi [/INST]</s>",
    "<think>\nhm\n</think>\n\nok <tool_call>{}</tool_call>",
    "a<sep>b <sep> c  <sep>  d",
    "x word y wordy word",
    "<0x41> <0xE4> <unk>",
]

SEGMENTS = [
    [["c", "<|im_start|>"], ["t", "user\nHello"], ["c", "<|im_end|>"], ["t", "\n"], ["c", "<|im_start|>"], ["t", "assistant\n"]],
    [["c", "<|im_start|>"], ["t", "system\nYou are"], ["t", " a dog."], ["c", "<|im_end|>"], ["t", "\n"]],
    [["t", "Hello"], ["c", "<|im_end|>"]],
    [["t", " Hello "], ["c", "<|im_end|>"], ["t", " world "], ["c", "<|im_end|>"], ["t", " 你好"]],
    [["c", "<|im_start|>"], ["c", "<|im_end|>"], ["t", "x"]],
    [["c", "<|im_start|>"]],
    [["t", "a "], ["c", "<sep>"], ["t", "  b"], ["c", "<sep>"], ["t", "c"]],
    [["t", "  "], ["c", "<sep>"], ["t", " \n "], ["c", "<|im_start|>"], ["t", "x"]],
    [["t", "<think>\nhm"], ["t", "</think>\n\n"], ["c", "<|im_end|>"], ["t", "word"], ["c", "<|im_end|>"], ["t", "word up"]],
    [["c", "<|im_start|>"], ["t", "👨‍👩‍👧‍👦 e\u0301"], ["c", "<|im_end|>"], ["t", "\n\n  def f():"]],
]


def entries(tok, texts):
    rows = []
    for text in texts:
        tok.encode_special_tokens = True
        plain = tok.encode(text, add_special_tokens=False).ids
        tok.encode_special_tokens = False
        raw = tok.encode(text, add_special_tokens=False).ids
        rows.append({
            "text": text,
            "plain": plain,
            "raw": raw,
            "special": tok.encode(text, add_special_tokens=True).ids,
            "decoded": tok.decode(raw, skip_special_tokens=False),
            "skipped": tok.decode(raw, skip_special_tokens=True),
        })
    return rows


def segments(tok):
    rows = []
    for case in SEGMENTS:
        whole = "".join(text for _, text in case)
        rows.append({"segments": case, "ids": tok.encode(whole, add_special_tokens=False).ids})
    return rows


def added(tok):
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
    tok.add_special_tokens([AddedToken("<sep>", special=True, normalized=False, lstrip=True, rstrip=True)])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ["<think>", "</think>"]])
    tok.add_tokens([AddedToken("<tool_call>", special=False, normalized=True)])
    tok.add_tokens([AddedToken("word", special=False, normalized=False, single_word=True)])


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (OUT / name).write_text(text + "\n", encoding="utf-8")


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def cl100k(number):
    return (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + number
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level_bpe():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([split(cl100k(r"\p{N}{1,3}")), pre_tokenizers.ByteLevel(False, True, False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(CORPUS, trainer)
    added(tok)
    tok.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|endoftext|>",
        special_tokens=[(t, tok.token_to_id(t)) for t in ["<|im_start|>", "<|endoftext|>"]])
    return tok


# The pre-tokenizers as each family's tokenizer.json has them, before the byte-level step.
DIGITS = lambda: pre_tokenizers.Digits(individual_digits=True)
GPT2_STEP = lambda: pre_tokenizers.ByteLevel(False, True, True)
O200K_UP = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
O200K_LOW = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def o200k(suffix, number):
    before = r"[^\r\n\p{L}\p{N}]?"
    return (before + O200K_UP + "*" + O200K_LOW + "+" + suffix + "|" + before + O200K_UP + "+" + O200K_LOW + "*" + suffix
            + "|" + number + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


PRE = {
    "gpt-2": [],
    "smollm": [DIGITS],
    "starcoder": [DIGITS],
    "refact": [DIGITS],
    "command-r": [DIGITS],
    "falcon": [lambda: pre_tokenizers.Punctuation("contiguous"), GPT2_STEP, lambda: split("[0-9][0-9][0-9]")],
    "mpt": [],
    "olmo": [],
    "jais": [],
    "llama-bpe": [lambda: split(cl100k(r"\p{N}{1,3}"))],
    "dbrx": [lambda: split(cl100k(r"\p{N}{1,3}"))],
    "smaug-bpe": [lambda: split(cl100k(r"\p{N}{1,3}"))],
    "qwen2": [lambda: split(cl100k(r"\p{N}"))],
    "stablelm2": [lambda: split(cl100k(r"\p{N}"))],
    "qwen35": [lambda: split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")],
    "deepseek-coder": [lambda: split(r"[\r\n]"), lambda: split(r"\s?\p{L}+"), lambda: split(r"\s?\p{P}+"),
                       lambda: split("[一-龥ࠀ-一가-퟿]+"), DIGITS],
    "deepseek-v3": [lambda: split(r"\p{N}{1,3}"), lambda: split("[一-龥぀-ゟ゠-ヿ]+"), lambda: split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")],
    "bloom": [lambda: split(r" ?[^(\s|[.,!?…。，、।۔،])]+")],
    "poro-chat": [lambda: split(r" ?[^(\s|[.,!?…。，、।۔،])]+")],
    "viking": [lambda: split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), DIGITS],
    "tekken": [lambda: split(o200k("", r"\p{N}"))],
    "gpt-4o": [lambda: split(o200k("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"))],
}
USES_GPT2 = {"gpt-2", "smollm", "starcoder", "refact", "command-r", "mpt", "olmo", "jais"}
IGNORES_MERGES = {"llama-bpe", "tekken"}
NFC = {"command-r", "mpt", "olmo", "qwen2", "qwen35"}


def family(name):
    # Falcon's byte-level step stands before its last split.
    last = [] if name == "falcon" else [pre_tokenizers.ByteLevel(False, True, name in USES_GPT2)]
    return pre_tokenizers.Sequence([step() for step in PRE[name]] + last)


def pre_golden(tok):
    base = json.loads(tok.to_str())
    base["added_tokens"] = []
    base["post_processor"] = None
    rows = {}
    for name in PRE:
        spec = copy.deepcopy(base)
        spec["model"]["ignore_merges"] = name in IGNORES_MERGES
        one = Tokenizer.from_str(json.dumps(spec))
        one.pre_tokenizer = family(name)
        if name in NFC:
            one.normalizer = normalizers.NFC()
        rows[name] = [one.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return rows


def sentence_piece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS * 2 for line in text.split("\n") if line.strip()),
        model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.98, minloglevel=2,
        allow_whitespace_only_pieces=True, split_digits=True)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def spm_json(proto):
    """A tokenizer.json of the SentencePiece model, in the form of Llama's."""
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    scores = {p.piece: p.score for p in proto.pieces}
    merges = []
    for piece, score in scores.items():
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(score, pair) for pair in pairs]
    merges = [pair for _, pair in sorted(merges, key=lambda m: -m[0])]
    tok = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    added(tok)
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def spm_first(tok):
    """Llama's tokenizer with legacy=False: the prefix only at the beginning of the text."""
    one = Tokenizer.from_str(tok.to_str())
    one.normalizer = None
    one.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", False)
    return one


def metaspace_always(tok):
    one = Tokenizer.from_str(tok.to_str())
    one.normalizer = None
    one.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", True)
    one.decoder = decoders.Metaspace("▁", "always")
    return one


def gemma_like(tok):
    one = Tokenizer.from_str(tok.to_str())
    one.normalizer = normalizers.Replace(" ", "▁")
    one.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    one.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return one


def main():
    OUT.mkdir(exist_ok=True)
    bpe = byte_level_bpe()
    write("bpe.tokenizer.json", json.loads(bpe.to_str()))
    write("bpe.json", {"texts": entries(bpe, TEXTS), "segments": segments(bpe)})
    write("pre.json", {"texts": TEXTS, "ids": pre_golden(bpe)})

    proto = sentence_piece()
    legacy = spm_json(proto)
    write("spm.tokenizer.json", json.loads(legacy.to_str()))
    for name, make in {"spm_legacy": lambda t: t, "spm_first": spm_first, "metaspace": metaspace_always, "gemma": gemma_like}.items():
        tok = make(legacy)
        spec = json.loads(tok.to_str())
        parts = {key: spec[key] for key in ["normalizer", "pre_tokenizer", "decoder"]}
        write(name + ".json", {"parts": parts, "texts": entries(tok, TEXTS), "segments": segments(tok)})

    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    write("spm_gguf.json", {
        "tokens": [p.piece for p in proto.pieces],
        "scores": [round(p.score, 6) for p in proto.pieces],
        "types": [p.type for p in proto.pieces],
        # NUL ends a string inside sentencepiece.
        "texts": [{"text": t, "ids": processor.encode(t), "decoded": processor.decode(processor.encode(t))}
                  for t in TEXTS if t and "\0" not in t],
    })


CHAT = [
    {"role": "system", "content": "You are a helpful assistant.  "},
    {"role": "user", "content": " Hello 👨‍👩‍👧‍👦, wie geht's?\n\n"},
    {"role": "assistant", "content": "你好！\n\n  1234567 of e\u0301"},
    {"role": "user", "content": "def f():\n    return '▁x'"},
]


def real(path):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = pathlib.Path(path)

    # The class that takes tokenizer.json as it is. Transformers 5 rebuilds some others from the vocabulary, and gets
    # DeepSeek's wrong where no config.json tells it the model.
    if path.is_dir():
        tok = PreTrainedTokenizerFast.from_pretrained(path)
    else:
        import gguf

        tok = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        # Transformers ignores the file's pre-tokenizer and takes GPT-2's.
        pre = gguf.GGUFReader(path).fields["tokenizer.ggml.pre"].contents()
        tok._tokenizer.pre_tokenizer = family(pre)
    # Llama 2's form stands in where a folder has no template.
    tok.chat_template = tok.chat_template or (
        "{% for m in messages %}{{ bos_token or '' }}[INST] {{ m.content }} [/INST] x {{ eos_token or '' }}{% endfor %}")
    specials = [t.content for t in tok.added_tokens_decoder.values() if t.special]
    literal = re.compile("(" + "|".join(re.escape(t) for t in sorted(specials, key=len, reverse=True)) + ")")
    cases = []
    for chat in [CHAT, CHAT[1:], CHAT[1:2]]:
        for generate in [True, False]:
            try:
                whole = tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=generate)
            except Exception as error:
                print(path, type(error).__name__, error)
                continue
            parts = [["c" if i % 2 else "t", part] for i, part in enumerate(literal.split(whole)) if part]
            cases.append({"segments": parts, "ids": tok(whole, add_special_tokens=False)["input_ids"]})
    texts = TEXTS + [" ".join(CORPUS), "\n".join(CORPUS)] + [f" {t} a {t}  b" for t in specials[:6]]
    out = {"texts": entries(tok._tokenizer, texts), "segments": cases}
    golden = path / "golden.json" if path.is_dir() else path.with_suffix(".golden.json")
    golden.write_text(json.dumps(out, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        for path in sys.argv[1:]:
            real(path)
    else:
        main()
