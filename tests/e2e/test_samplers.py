"""Samplers as a client sees them. What is expected follows from the methods' definitions, or is the same request's answer
by another way."""
import json, re, subprocess

import openai, pytest

from conftest import BINARY, MODEL, Server

PROMPT = "Once upon a time, there was a"


def complete(server, **more):
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12}
    extra = {k: more.pop(k) for k in list(more) if k not in ("n", "best_of", "logprobs", "seed", "temperature", "stream", "max_tokens", "prompt", "stop")}
    return server.client.completions.create(**{**fields, **more}, extra_body=extra)


def texts(answer):
    return [choice.text for choice in sorted(answer.choices, key=lambda c: c.index)]


def logprob(choice):
    return sum(choice.logprobs.token_logprobs)


@pytest.mark.parametrize(
    "field, value",
    [
        ("xtc_probability", 1.5),
        ("mirostat_mode", 3),
        ("epsilon_cutoff", 2),
        ("dry_base", 0.5),
        ("no_repeat_ngram_size", -1),
        ("watermark", {"gamma": 0.5}),
        ("sampler", "there-is-none"),
        ("sampler", "Not A Name"),
        ("best_of", 0),
    ],
)
def test_a_field_out_of_range_is_named(server, field, value):
    with pytest.raises(openai.BadRequestError) as error:
        complete(server, **{field: value})
    assert error.value.param.split(".")[0] == field, error.value


def test_stages_change_what_is_drawn_and_repeat_with_the_seed(server):
    plain = texts(complete(server, temperature=1.0, seed=3, max_tokens=24))
    settings = [
        {"mirostat_mode": 2, "mirostat_tau": 1.0},
        {"mirostat_mode": 1, "mirostat_tau": 1.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"top_n_sigma": 0.5},
        {"tfs": 0.3},
        {"epsilon_cutoff": 0.2},
        {"eta_cutoff": 0.3},
        {"dynatemp_min": 0.1, "dynatemp_max": 3.0},
        {"watermark": {"key": 5, "gamma": 0.25, "delta": 8}},
    ]
    for more in settings:
        first = texts(complete(server, temperature=1.0, seed=3, max_tokens=24, **more))
        assert first == texts(complete(server, temperature=1.0, seed=3, max_tokens=24, **more)), more
        assert first != plain, more


def test_no_ngram_repeats(server):
    prompt = "a b c d a b c d a b c d a b c"
    ids = lambda text: server.http.post("/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    answer = complete(server, prompt=prompt, temperature=0, no_repeat_ngram_size=3, max_tokens=24, logprobs=0)
    tokens = ids(prompt + answer.choices[0].text)
    made = len(tokens) - len(ids(prompt))
    grams = [tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)]
    for last in range(len(tokens) - made - 2, len(grams)):
        assert grams[last] not in grams[:last]


def test_beam_search_finds_what_is_likelier_than_greedy(server):
    greedy = complete(server, temperature=0, logprobs=0, ignore_eos=True)
    beams = complete(server, use_beam_search=True, n=3, temperature=0, logprobs=0, ignore_eos=True)
    assert len(beams.choices) == 3 and len(set(texts(beams))) == 3
    sums = [logprob(c) for c in sorted(beams.choices, key=lambda c: c.index)]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] >= logprob(greedy.choices[0]) - 1e-3
    streamed = server.client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, n=3, stream=True, temperature=0,
        extra_body={"use_beam_search": True, "ignore_eos": True},
    )
    parts = ["", "", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            parts[choice.index] += choice.text
    assert parts == texts(beams)


def test_the_best_of_several_is_given(server):
    best = complete(server, best_of=6, n=2, temperature=1.0, seed=11, logprobs=0)
    assert len(best.choices) == 2
    mean = lambda c: logprob(c) / len(c.logprobs.token_logprobs)
    first, second = sorted(best.choices, key=lambda c: c.index)
    assert mean(first) >= mean(second)
    again = complete(server, best_of=6, n=2, temperature=1.0, seed=11, logprobs=0)
    assert texts(best) == texts(again)


def test_samplers_of_one_batch_do_not_meet(server):
    import concurrent.futures as cf

    kinds = [{}, {"use_beam_search": True, "n": 2}, {"best_of": 3}, {"sampler": "contrastive"}, {"sampler": "tree"}]
    ask = lambda i: texts(complete(server, temperature=0.8, seed=i, **kinds[i % len(kinds)]))
    alone = [ask(i) for i in range(10)]
    with cf.ThreadPoolExecutor(10) as pool:
        together = list(pool.map(ask, range(10)))
    assert together == alone
    server.until(lambda: server.metric("vllm:num_requests_running") == 0)
    server.until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0)


def test_guessing_tokens_changes_nothing(server):
    guessing = Server("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    try:
        prompt = "one two three four one two three four one two three"
        for more in ({"temperature": 0}, {"temperature": 0.7, "seed": 5}, {"temperature": 0, "repetition_penalty": 1.1}):
            assert texts(complete(server, prompt=prompt, max_tokens=40, **more)) == texts(complete(guessing, prompt=prompt, max_tokens=40, **more))
        assert guessing.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    finally:
        assert guessing.stop() == 0


def test_processed_logprobs_are_those_of_the_sampler(server):
    processed = Server("--logprobs-mode", "processed_logprobs")
    try:
        fields = {"temperature": 1.0, "seed": 2, "top_k": 1, "logprobs": 2}
        raw, cut = complete(server, **fields), complete(processed, **fields)
        assert texts(raw) == texts(cut)
        assert all(p == 0 for p in cut.choices[0].logprobs.token_logprobs)
        assert all(p < 0 for p in raw.choices[0].logprobs.token_logprobs)
    finally:
        assert processed.stop() == 0


def run(*arguments, code=0):
    done = subprocess.run([BINARY, "--log-level", "error", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_trace_tells_what_the_sampler_saw_and_chose():
    arguments = ["sample", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", "4", "--trace"]
    lines = [json.loads(line) for line in run(*arguments, "--json", "--sampler", "beam", "--params", '{"n": 2, "ignore_eos": true}').splitlines()]
    kinds = {line["event"] for line in lines}
    assert kinds == {"plan", "row", "choice", "selected", "answer"}
    rows = [line for line in lines if line["event"] == "row"]
    assert all(abs(sum(c["probability"] for c in row["candidates"])) <= 1.0001 for row in rows)
    assert len([line for line in lines if line["event"] == "answer"]) == 2
    text = run(*arguments, "--sampler", "standard", "--params", '{"temperature": 0}')
    assert re.search(r"^plan: no stages; then Greedy", text, re.M) and "answer 0:" in text
