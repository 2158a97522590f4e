"""Makes the SentencePiece models and the table of ranks in tests/golden/models, and what the reference packages make of texts.

    pip install sentencepiece==0.2.3 tiktoken==0.14.0 tokenizers protobuf
    python make_models.py                  # the fixtures
    python make_models.py FOLDER…          # writes models.json into each folder with a tokenizer.model or *.tiktoken

The models are trained here on a few sentences, so that they are small; ids and texts come from `sentencepiece` and `tiktoken`.
Folders of real vocabularies, which are too large to keep here, are for the ignored test in tests/models.rs. A folder with a
table needs "pat_str" in its tokenizer_config.json, unless the table is one that tests/models.rs calls known.
"""

import base64
import io
import json
import pathlib
import random
import sys

import sentencepiece
import tiktoken
from make_golden import CORPUS, TEXTS, cl100k, o200k
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).parent / "golden" / "models"

# Beside TEXTS: one line for each script that it lacks, and what is hard for normalizers.
MORE = [
    "Ελληνικά: Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "Հայերեն՝ Բարև աշխարհ։",
    "ქართული: გამარჯობა მსოფლიო",
    "עברית: שלום עולם, מה שלומך?",
    "فارسی: سلام دنیا؛ می‌خواهم",
    "اردو: ہیلو دنیا",
    "বাংলা: ওহে বিশ্ব।",
    "ਪੰਜਾਬੀ: ਸਤ ਸ੍ਰੀ ਅਕਾਲ",
    "ગુજરાતી: નમસ્તે વિશ્વ",
    "தமிழ்: வணக்கம் உலகம்",
    "తెలుగు: హలో ప్రపంచం",
    "ಕನ್ನಡ: ಹಲೋ ವಿಶ್ವ",
    "മലയാളം: ഹലോ വേൾഡ്",
    "සිංහල: හෙලෝ වර්ල්ඩ්",
    "ລາວ: ສະບາຍດີໂລກ",
    "မြန်မာ: မင်္ဂလာပါကမ္ဘာလောက",
    "ខ្មែរ: សួស្តី​ពិភពលោក",
    "བོད་སྐད: བཀྲ་ཤིས་བདེ་ལེགས།",
    "አማርኛ: ሰላም ልዑል",
    "Монгол: Сайн уу, Українська: Привіт, ґанок",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᐃᓄᒃᑎᑐᑦ ߒߞߏ ⴰⵎⴰⵣⵉⵖ",
    "Tiếng Việt: Xin chào thế giới, Türkçe: İstanbul'da ığdır, Polski: zażółć gęślą jaźń",
    "繁體中文：龍門陣，饕餮；ㄅㄆㄇ　全形ＡＢＣ１２３",
    "ｶﾀｶﾅ ﾊﾝｶｸ ㈱ ㍿ ℡ № ﬁ ﬂ Ⅳ ½ ①",
    "\u1100\u1161\u11a8 jamo, \uac01 syllable",
    "a\u0300\u0316 b\u0316\u0300 \u212b \u00c5 A\u030a",
    "tabs\t\tand   runs      of spaces\n\n\n\n   \u3000\u2003em\u00a0nbsp\u202fnnbsp",
    "    indented\n        more\n\tmixed \t \t\n",
    "\u0001\u0002\u001b[31m\u007f\u0080\u009f\u00ad\u200b\u200c\u200d\u2060\ufeff",
    "\ufffd\ufffe\uffff \ue000 \U000f0000 \U0010ffff \u0378",
    "👩🏽‍🚀🧑‍🤝‍🧑🏴󠁧󠁢󠁳󠁣󠁴󠁿 1️⃣ ©️ ☕︎",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbb  ========================",
    "x" * 300 + " " * 50 + "\n" * 20 + "的" * 60,
    "fn main() { let x: Vec<_> = (0..10).map(|i| i * 2).collect(); println!(\"{x:?}\"); }",
    "SELECT * FROM t WHERE a='b' AND c<>\"d\"; -- note\n\\frac{1}{2} $\\alpha$ \\n \\t",
    "{\"key\": [1, 2.5e-3, null, true], \"ünï\": \"\\u00e9\"}",
    "<user> <tool>name</tool> <usertool> ▁<user>▁ <mask>x<mask> <s> </s> <unk>",
    " lead", "trail ", "  both  ", "\n", "\t", "▁", "▁▁▁", "a▁b", "\u3000",
]
ALL = [t for t in TEXTS + MORE + [" ".join(CORPUS), "\n".join(CORPUS)] if "\0" not in t]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0, separators=(",", ":")) + "\n", encoding="utf-8")


def clean_bytes(processor, ids):
    """Whether no byte pieces stand together that are not whole characters: there, Hugging Face replaces the whole run."""
    run = b""
    for i in ids + [None]:
        if i is not None and processor.is_byte(i):
            run += bytes([int(processor.id_to_piece(i)[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


def pieces_golden(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    rows = [{"text": t, "ids": processor.encode(t)} for t in ALL]
    for row in rows:
        row["decoded"] = processor.decode(row["ids"])
    usable = [i for i in range(processor.vocab_size())
              if not processor.is_control(i) and not processor.is_unknown(i)]
    draw = random.Random(5)
    decode = []
    for _ in range(60):
        ids = draw.choices(usable, k=draw.randint(1, 12))
        if clean_bytes(processor, ids):
            decode.append({"ids": ids, "decoded": processor.decode(ids)})
    # Hugging Face writes the unknown token as it is spelt.
    unk = processor.unk_id()
    for row in rows:
        if unk in row["ids"]:
            row["decoded"] = None
    return {"texts": rows, "decode": decode}


def ranks_golden(ranks, pattern, specials, normalize=lambda t: t):
    encoding = tiktoken.Encoding("fixture", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials)
    rows = []
    for text in ALL:
        ids = encoding.encode_ordinary(normalize(text))
        rows.append({"text": text, "ids": ids, "decoded": encoding.decode(ids)})
    draw = random.Random(5)
    decode = []
    for _ in range(60):
        ids = draw.choices(sorted(ranks.values()), k=draw.randint(1, 12))
        decode.append({"ids": ids, "decoded": encoding.decode(ids, errors="replace")})
    return {"texts": rows, "decode": decode}


def train(**options):
    model = io.BytesIO()
    lines = [line for text in CORPUS * 2 for line in text.split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=500, character_coverage=0.98, minloglevel=2,
        hard_vocab_limit=False, **options)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


# Rules as in nmt_nfkc, but few: full-width letters, ligatures, composition, white space, what is dropped.
RULES = (
    [([0xff21 + i], [0x41 + i]) for i in range(26)] + [([0xff10 + i], [0x30 + i]) for i in range(10)]
    + [([0xfb01], [0x66, 0x69]), ([0xfb02], [0x66, 0x6c]), ([0x65, 0x301], [0xe9]), ([0x41, 0x30a], [0xc5]), ([0x212b], [0xc5])]
    + [([c], [0x20]) for c in [0x09, 0x0a, 0x0d, 0xa0, 0x3000, 0x2003, 0x202f]]
    + [([c], []) for c in [0x200b, 0xfeff, 0x01, 0x7f]] + [([0x3231], [0x28, 0x682a, 0x29]), ([0xbd], [0x31, 0x2044, 0x32])]
)


def fixtures():
    OUT.mkdir(exist_ok=True, parents=True)
    rules = OUT / "rules.tsv"
    rules.write_text("".join(
        " ".join(f"{c:X}" for c in a) + "\t" + " ".join(f"{c:X}" for c in b) + "\n" for a, b in RULES))
    own = {"user_defined_symbols": ["<user>", "<tool>", "</tool>", "<usertool>", "  "], "control_symbols": ["<mask>"]}
    protos = {
        "unigram": train(model_type="unigram", normalization_rule_tsv=str(rules), **own),
        "unigram_bytes": train(model_type="unigram", normalization_rule_name="identity", byte_fallback=True,
                               remove_extra_whitespaces=False, split_digits=True),
        "bpe": train(model_type="bpe", normalization_rule_name="identity", byte_fallback=True,
                     remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, **own),
        "bpe_plain": train(model_type="bpe", normalization_rule_tsv=str(rules), add_dummy_prefix=False),
        "suffix": train(model_type="unigram", normalization_rule_name="identity", treat_whitespace_as_suffix=True),
    }
    rules.unlink()
    # Pieces that are only steps to longer ones.
    for piece in protos["bpe_plain"].pieces:
        if piece.type == 1 and len(piece.piece) in (2, 3) and piece.piece.isascii():
            piece.type = 5
    for name, proto in protos.items():
        proto.trainer_spec.input.clear()
        proto.normalizer_spec.normalization_rule_tsv = ""
        model = proto.SerializeToString(deterministic=True)
        (OUT / f"{name}.model").write_bytes(model)
        write(OUT / f"{name}.json", pieces_golden(model))

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    spelling = {c: b for b, c in byte_spelling().items()}
    ranks = {bytes(spelling[c] for c in token): i for token, i in bpe.get_vocab().items()}
    assert set(ranks) >= {bytes([b]) for b in range(256)}
    table = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda r: r[1]))
    (OUT / "small.tiktoken").write_text(table)
    golden = ranks_golden(ranks, cl100k(r"\p{N}{1,3}"), {})
    golden["pattern"] = cl100k(r"\p{N}{1,3}")
    write(OUT / "small.json", golden)


def byte_spelling():
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(0x100 + i) for i, b in enumerate(rest)}


def nfc(text):
    import unicodedata

    return unicodedata.normalize("NFC", text)


# Patterns and normalisation of the tables that are known by their size, as their packages have them.
KNOWN = {
    100_256: (cl100k(r"\p{N}{1,3}"), lambda t: t),
    128_000: (cl100k(r"\p{N}{1,3}"), lambda t: t),
    151_329: (cl100k(r"\p{N}{1,3}"), lambda t: t),
    151_643: (cl100k(r"\p{N}"), nfc),
    199_998: (o200k("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), lambda t: t),
    200_000: (o200k("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"), lambda t: t),
}


def real(folder):
    files = [folder / "tokenizer.model", *folder.glob("*.tiktoken")]
    file = next(f for f in files if f.is_file())
    data = file.read_bytes()
    if data.startswith(b"\n"):
        write(folder / "models.json", pieces_golden(data))
        return
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}
    config = folder / "tokenizer_config.json"
    pattern = json.loads(config.read_text()).get("pat_str") if config.is_file() else None
    normalize = lambda t: t
    if pattern is None:
        pattern, normalize = KNOWN[len(ranks)]
    write(folder / "models.json", ranks_golden(ranks, pattern, {}, normalize))


if sys.argv[1:]:
    for path in sys.argv[1:]:
        real(pathlib.Path(path))
else:
    fixtures()
