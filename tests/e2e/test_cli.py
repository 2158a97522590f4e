"""The command line and the library, as a shell sees them."""
import json, os, subprocess

import pytest

from conftest import BINARY, MODEL

OFFLINE = os.path.join(os.path.dirname(BINARY), "examples", "offline")


def run(*arguments, program=BINARY, **more):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, **more)


def test_generate_answers_lines_in_order(tmp_path):
    lines = [
        "The capital of France is",
        {"prompt": "The capital of Italy is", "max_tokens": 4},
        {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 5}},
        {"prompt": "x", "temperature": -1},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(l) + "\n" for l in lines))
    done = run("generate", MODEL, "--input", str(source), "--temperature", "0", "--max-tokens", "8")
    answers = [json.loads(l) for l in done.stdout.splitlines()]
    assert [a["index"] for a in answers] == [0, 1, 2, 3]
    assert "Paris" in answers[0]["response"]["choices"][0]["text"]
    assert answers[1]["response"]["usage"]["completion_tokens"] == 4
    assert answers[2]["custom_id"] == "a" and answers[2]["response"]["object"] == "chat.completion"
    assert answers[3]["error"]["param"] == "temperature" and done.returncode == 1


def test_chat_answers_one_question():
    done = run("chat", MODEL, "--temperature", "0", "--max-tokens", "30", "--quick", "What is the capital of France?")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr


def test_the_graph_is_printed_and_drawn(tmp_path):
    picture = tmp_path / "graph.dot"
    done = run("graph", MODEL, "--dot", str(picture))
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 120, done.stdout[:2000]  # equal layers are folded
    assert picture.read_text().startswith("digraph")


def test_doctor_finds_nothing_wrong():
    done = run("doctor")
    assert done.returncode == 0 and "FAIL" not in done.stdout, done.stdout


def test_bench_reports_json(tmp_path):
    report = tmp_path / "report.json"
    done = run("bench", "throughput", MODEL, "--num-prompts", "4", "--input-len", "8", "--output-len", "8", "--output-json", str(report))
    assert done.returncode == 0, done.stderr
    assert json.loads(report.read_text())["num_prompts"] == 4


def test_the_library_example_runs():
    done = run(MODEL, program=OFFLINE)
    assert done.returncode == 0 and "Paris" in done.stdout and "Rome" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("model, words", [
    ("no-such-model", "is not a model"),
    ("./missing.gguf", "there is no file"),
    ("pypi:x==1", "the hash is missing"),
])
def test_a_wrong_model_is_explained(model, words):
    done = run("graph", model)
    assert done.returncode == 1 and words in done.stderr
