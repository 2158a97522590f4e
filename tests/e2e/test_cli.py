"""The command line and the library, as a shell sees them."""
import json, os, pathlib, shutil, subprocess

import pytest

from conftest import BINARY, MODEL, Server

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


def test_the_graph_needs_no_weights(only_config):
    raw, fused = (run("graph", only_config, form).stdout for form in ("--raw", "--fused"))
    assert raw.count("= linear(") > fused.count("= linear(") > 0 and "rope-write" in fused
    document = json.loads(run("graph", only_config, "--raw", "--json").stdout)
    totals, graph = document["totals"], document["graph"]
    config = json.loads((pathlib.Path(only_config) / "config.json").read_text())
    h, v, f, l = (config[k] for k in ("hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers"))
    d = config.get("head_dim") or h // config["num_attention_heads"]
    q, kv = d * config["num_attention_heads"], d * config["num_key_value_heads"]
    assert totals["parameters"] == 2 * v * h + l * (h * (2 * q + 2 * kv) + 3 * h * f + 2 * h) + h
    assert totals["kv_bytes_per_token"] == l * 2 * kv * 2
    assert totals["bytes"] == 4 * totals["parameters"] and len(graph["caches"]) == l


@pytest.fixture
def only_config(tmp_path):
    """A folder with nothing but the golden Llama's configuration."""
    source = pathlib.Path(__file__).parents[1] / "golden" / "cases" / "llama" / "config.json"
    (tmp_path / "model").mkdir()
    shutil.copy(source, tmp_path / "model" / "config.json")
    return str(tmp_path / "model")


def test_a_config_alone_is_timed_with_dummy_weights(only_config):
    done = run("graph", only_config, "--load-format", "dummy")
    assert done.returncode == 0 and "model.embed_tokens.weight" in done.stdout, done.stderr
    done = run("bench", "latency", only_config)
    assert done.returncode == 1 and "no weights" in done.stderr, done.stderr
    work = ["--work-list", "3x20/5", "2x8/4@0.8,0.9"]
    few = ["--num-iters-warmup", "0", "--num-iters", "2", "--bandwidth", "10"]
    done = run("bench", "latency", only_config, "--load-format", "dummy", "--json", *few, *work)
    assert done.returncode == 0, done.stderr
    greedy, sampled = json.loads(done.stdout)
    assert (greedy["batch_size"], greedy["input_len"], greedy["output_len"]) == (3, 20, 5)
    assert (sampled["temperature"], sampled["top_p"]) == (0.8, 0.9)
    for result in greedy, sampled:
        for name in "batch_ms", "prefill_ms", "decode_step_ms", "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms":
            assert 0 < result[name]["p50"] <= result[name]["p99"], name
        assert result["step_weight_gb"] > 0 and result["share_of_roofline"] > 0


def test_dummy_weights_are_served_and_timed_over_http(only_config):
    server = Server("--load-format", "dummy", model=only_config)
    try:
        answer = server.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3, "ignore_eos": True}).json()
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8} | {
            k: v for k, v in answer["usage"].items() if k.endswith("details")
        }
        done = run("bench", "serve", "--base-url", server.base, "--num-prompts", "6", "--input-len", "12", "--output-len", "7",
                   "--vocab", "100", "--max-concurrency", "3", "--temperature", "1", "--top-p", "0.9", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["completed"], result["failed"]) == (6, 0)
        assert result["output_throughput"] > 0 and result["tpot_ms"]["p50"] > 0
        assert server.metric("guesthouse:step_exposed_seconds_count") > 0
    finally:
        assert server.stop() == 0


def test_devices_that_are_not_there_are_named(only_config):
    done = run("bench", "latency", only_config, "--load-format", "dummy", "--device", "cuda:63")
    assert done.returncode == 1 and "cuda" in done.stderr and "panicked" not in done.stderr, done.stderr
    done = run("bench", "latency", only_config, "--load-format", "dummy", "--device", "gpu")
    assert done.returncode == 2 and "cuda:N" in done.stderr, done.stderr
    done = run("serve", only_config, "--gpu-memory-utilization", "1.5")
    assert done.returncode == 2 and "at most 1" in done.stderr, done.stderr


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
