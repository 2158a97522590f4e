"""Samplers of one's own, as docs/samplers.md says: from `guesthouse module new` to tokens, in three languages, and the page's
requests."""
import json, re, shutil

import pytest

from conftest import BINARY, MODEL
from projects import ROOT, build, run, run_tests

PAGE = (ROOT / "docs" / "samplers.md").read_text()
REQUESTS = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.S | re.M)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside") / "my-sampler"
    run(BINARY, "module", "new", "sampler", "my-sampler", "--path", str(folder), "--sdk", str(ROOT / "guests" / "sdk"))
    # The versions that the built-in guests are built from are here already.
    shutil.copy(ROOT / "guests" / "Cargo.lock", folder)
    return folder


def sample(sampler, **more):
    """Lines of a traced run."""
    out = run(BINARY, "--log-level", "error", "sample", "--model", MODEL, "--prompt", "Once upon a time", "--sampler", str(sampler),
              "--max-tokens", "8", "--seed", "7", "--trace", "--json", *(word for pair in more.items() for word in pair))
    return [json.loads(line) for line in out.splitlines()]


def test_the_template_builds_and_chooses(project):
    module = build(project)
    checked = run(BINARY, "module", "check", str(module))
    assert "role      sampler" in checked and "steps     yes" in checked and "check     ok" in checked
    assert "wasi" not in next(line for line in checked.splitlines() if line.startswith("imports"))
    lines = sample(module)
    assert len([line for line in lines if line["event"] == "choice"]) == 8
    certain = sample(module, **{"--sampler-args": '{"min_p": 1}'})
    rows, choices = ([line for line in certain if line["event"] == kind] for kind in ("row", "choice"))
    assert [row["candidates"][0]["token"] for row in rows] == [choice["token"] for choice in choices]


def test_its_own_tests_pass(project):
    assert "2 passed" in run_tests(project)


def test_three_languages_give_one_answer():
    run(str(ROOT / "examples" / "build.sh"))
    args = {"--sampler-args": '{"k": 10, "max": 2}'}
    rust, python, javascript = (sample(ROOT / "target" / "examples" / f"sampler-{name}.wasm", **args) for name in ("rust", "python", "javascript"))
    told = lambda lines: [line for line in lines if line["event"] in ("row", "choice", "answer")]
    assert told(rust) == told(python)
    assert told(rust) == told(javascript)


@pytest.mark.parametrize("body", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_of_the_page_is_answered(server, body):
    answer = server.http.post("/v1/completions", json={"model": MODEL, "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    outputs = body.get("structured_outputs", {})
    if "choice" in outputs:
        assert choice["text"] in outputs["choice"]
    if "regex" in outputs:
        assert re.fullmatch(outputs["regex"], choice["text"])
    if "response_format" in body and choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"])["age"], int)
