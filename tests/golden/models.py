"""Writes docs/models.md: what is served, by which guest, and how that is tested. Needs nothing but Python.

    python models.py            writes it
    python models.py --check    fails where it is not what would be written

It reads what it says from the sources: `ARCHITECTURES` of guests/models, the golden cases, GGUF's name tables and the CUDA
device's list of ops. A test of the host (model::tests::docs) compares the table with what the built guests themselves answer.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"

HEAD = """# Models

*Written by `tests/golden/models.py` from the sources; do not edit.*

Each architecture is built by a guest; the host knows none of their names beside those that GGUF files carry. Another
one is [another guest](add-an-architecture.md).

Every golden case is a tiny checkpoint with random weights that runs through the host on the CPU in CI: logits of a prefill and
eight greedy steps against transformers, or against a plain PyTorch model in `tests/golden/reference` where transformers has no such
class; whole, in chunks, from the prefix cache, after preemption, and in batches of unequal lengths. Each feature of a case is
proven to matter: taking it out of the reference moves the logits (`mutations.md` of the case). The same cases run on NVIDIA
GPUs with `tests/gpu.sh`.

Weights are safetensors in float32, float16 or bfloat16, for every class. Where the column says GGUF, also GGUF files of that
architecture with F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K tensors, which stay quantized in memory.
FP8 matrices of safetensors with a scale per 128 × 128 elements (`weight_scale_inv`, DeepSeek's form) are read as the bfloat16
matrices that they stand for. Pickled weights are never loaded; a folder that has nothing else is refused with the command that converts it.

| class | guest | golden cases | quantized | reference |
| --- | --- | --- | --- | --- |
"""


def architectures():
    """{class: guest}, from the constant in each guest's source."""
    found = {}
    for guest in sorted((ROOT / "guests" / "models").iterdir()):
        text = "".join(path.read_text() for path in sorted((guest / "src").rglob("*.rs")))
        listed = re.search(r"const ARCHITECTURES: &'static \[&'static str\] =\s*&\[(.*?)\];", text, re.S)
        if not listed:
            raise SystemExit(f"{guest}: no ARCHITECTURES that this script can read")
        constants = dict(re.findall(r'const (\w+): &(?:\'static )?str = "(\w+)";', text))
        for entry in re.findall(r'"?\w+"?', listed[1]):
            name = entry.strip('"') if entry.startswith('"') else constants[entry]
            if name in found:
                raise SystemExit(f"{name} is built by {found[name]} and by {guest.name}")
            found[name] = guest.name
    return found


def cases():
    """{class: [case]}"""
    found = {}
    for folder in sorted((ROOT / "tests" / "golden" / "cases").iterdir()):
        if (folder / "config.json").exists():
            for name in json.loads((folder / "config.json").read_text())["architectures"]:
                found.setdefault(name, []).append(folder.name)
    return found


def families():
    """{case: name of the file in families/ that defines it}"""
    found = {}
    for path in (ROOT / "tests" / "golden" / "families").glob("*.py"):
        for name in re.findall(r'^    "([\w.-]+)": ', path.read_text(), re.M):
            found[name] = path
    return found


def reference(case, where):
    """What computed the case's numbers."""
    path = where.get(case)
    text = path.read_text() if path else ""
    used = sorted(set(re.findall(r"(?:from|import) reference(?:\.| import )(\w+)", text)))
    return ", ".join(f"`reference/{name}.py`" for name in used) or "transformers"


def quantized(name, guest):
    tables = "".join(path.read_text() for path in (ROOT / "host/weights/src/gguf/hf").rglob("*.rs"))
    formats = ["GGUF"] if re.search(rf'"{name}"', tables) else []
    source = "".join(path.read_text() for path in (ROOT / "guests" / "models" / guest / "src").rglob("*.rs"))
    if re.search("mxfp4", source, re.I):
        formats.append("MXFP4")
    return ", ".join(formats) or "–"


def without_kernel():
    """What the CUDA device refuses by name, before it compiles anything: the arms of `fn supported`."""
    text = (ROOT / "host/device/src/cuda/compile.rs").read_text()
    body = re.search(r"fn supported\(.*?\n    }\n", text, re.S)
    # Passes make other ops of latent attention, which have kernels.
    body = re.sub(r"Op::\w+\(_\) => Err\(self\.unsupported\(node, lower::LATENT\)\),", "", body[0] if body else "")
    found = []
    for name, scheme in re.findall(r"Op::(\w+)(?:\(PositionScheme::(\w+))?", body):
        prefix = " with a prefix-LM mask" if name in ("Attention", "PagedAttention") else ""
        found.append(f"`{name}{f' {scheme}' if scheme else ''}`{prefix}")
    return sorted(set(found))


def page():
    guests, tested, where = architectures(), cases(), families()
    unknown = set(tested) - set(guests)
    if unknown:
        raise SystemExit(f"golden cases of {', '.join(sorted(unknown))}, which no guest builds")
    rows = []
    for name, guest in sorted(guests.items(), key=lambda pair: (pair[1], pair[0])):
        own = tested.get(name, [])
        by = sorted({reference(case, where) for case in own})
        listed = ", ".join(f"`{case}`" for case in own) or "–"
        rows.append(f"| `{name}` | `{guest}` | {listed} | {quantized(name, guest)} | {', '.join(by) or '–'} |\n")
    missing = without_kernel()
    if missing:
        ops = "A model that needs one of these ops is refused there by the op's name: " + ", ".join(missing) + ".\n"
    else:
        ops = "Every op has a CUDA kernel.\n"
    return HEAD + "".join(rows) + "\n## Ops without a CUDA kernel\n\n" + ops


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            raise SystemExit("docs/models.md is not what the sources say; run tests/golden/models.py")
    else:
        PAGE.write_text(text)
