"""What a client of the starter model sees. Expected texts are facts of the world or of the API's documents, or come from
the same request sent alone."""
import concurrent.futures as cf
import json

import openai, pytest

from conftest import MODEL, Server

FRANCE = "The capital of France is"


def complete(server, prompt, **more):
    return server.client.completions.create(**{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 16, **more})


def test_a_completion_knows_paris(server):
    answer = complete(server, FRANCE)
    assert "Paris" in answer.choices[0].text
    assert answer.usage.prompt_tokens == 5 and answer.usage.completion_tokens == 16


def test_a_chat_answers_and_ends(server):
    messages = [{"role": "user", "content": "Say hi."}]
    answer = server.client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert answer.choices[0].finish_reason == "stop" and "<|im" not in answer.choices[0].message.content
    parts = list(server.client.chat.completions.create(model=MODEL, messages=messages, temperature=0, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == answer.choices[0].message.content


def test_a_hundred_requests_at_once_answer_as_each_alone(server):
    """Fifty clients; half of the requests greedy, half sampled with a seed."""
    def ask(i):
        sampled = {"temperature": 0.9, "top_p": 0.95, "seed": i} if i % 2 else {}
        return complete(server, f"Fact {i % 50}: the number {i % 50} is", max_tokens=12, **sampled).choices[0].text

    alone = [ask(i) for i in range(100)]
    with cf.ThreadPoolExecutor(50) as pool:
        together = list(pool.map(ask, range(100)))
    assert together == alone
    server.until(lambda: server.metric("vllm:num_requests_running") == 0)
    server.until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0)


def test_unlike_tenants_of_a_batch_do_not_meet(server):
    texts = {complete(server, FRANCE, temperature=1.5, seed=s).choices[0].text for s in range(4)}
    assert len(texts) > 1


def test_a_client_that_goes_away_frees_its_blocks(server):
    body = {"model": MODEL, "prompt": "Count: 1 2 3", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
    server.until(lambda: server.metric("vllm:num_requests_running") == 0)
    server.until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0)


def test_errors_have_openais_shape(server):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(server, FRANCE, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        server.client.completions.create(model="no-such-model", prompt="x")
    answer = server.http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400 and set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_small_cache_preempts_and_answers_the_same(server):
    """2,000 positions for eight sequences of some 400: sequences are put back and recomputed."""
    def run(target):
        def ask(i):
            return complete(target, f"A long story about the number {i}.", max_tokens=380, extra_body={"ignore_eos": True}).choices[0].text

        with cf.ThreadPoolExecutor(8) as pool:
            return list(pool.map(ask, range(8)))

    per_position = 30 * 3 * (64 + 64) * 4  # layers × KV heads × (key + value) × f32
    small = Server("--max-model-len", "512", "--kv-cache-memory-bytes", str(2000 * per_position))
    try:
        assert run(small) == run(server)
        assert small.metric("vllm:num_preemptions_total") > 0
    finally:
        assert small.stop() == 0


def test_keys_guard_the_api():
    server = Server("--api-key", "sesame")
    try:
        assert server.http.get("/v1/models").status_code == 401
        assert server.http.get("/health").status_code == 200
        answer = server.http.get("/v1/models", headers={"authorization": "Bearer sesame"})
        assert answer.json()["data"][0]["id"] == MODEL
    finally:
        assert server.stop() == 0


def test_a_signal_drains_running_requests():
    server = Server()
    with server.http.stream("POST", "/v1/completions", json={"model": MODEL, "prompt": FRANCE, "max_tokens": 60, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.terminate()
        data = [l[6:] for l in lines if l.startswith("data: ")]
    assert data[-1] == "[DONE]" and json.loads(data[-2])["choices"][0]["finish_reason"] in ("length", "stop")
    assert server.process.wait(60) == 0


def test_the_examples_run(server):
    import pathlib, subprocess, sys

    folder = pathlib.Path(__file__).parents[2] / "examples" / "client"
    curl = subprocess.run([folder / "curl.sh", server.base], capture_output=True, text=True, check=True).stdout
    assert "Paris" in curl and curl.rstrip().endswith("data: [DONE]")
    python = subprocess.run([sys.executable, folder / "openai_client.py", server.base], capture_output=True, text=True, check=True)
    assert "Paris" in python.stdout
