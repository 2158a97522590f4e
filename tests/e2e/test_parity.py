"""SmolLM2 against transformers, which loaded the same file with `gguf_file=` in f32 (tests/golden/smollm2.py)."""
import json, pathlib

from conftest import MODEL

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())


def test_the_best_token_is_the_same_wherever_it_is_clear(server):
    """Teacher-forced: at each position the best next token, unless the reference's best two are closer than 0.05."""
    compared = 0
    for prompt in GOLDEN["prompts"]:
        body = {"model": MODEL, "prompt": prompt["ids"], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
        choice = server.http.post("/v1/completions", json=body | {"logprobs": 1, "return_tokens_as_token_ids": True}).json()["choices"][0]
        best = [int(next(i for i, e in entries.items() if e["rank"] == 1)) for entries in choice["prompt_logprobs"][1:]]
        best.append(int(choice["logprobs"]["tokens"][0].removeprefix("token_id:")))
        assert len(best) == len(prompt["ids"])
        for position, (ours, theirs) in enumerate(zip(best, prompt["best"])):
            token, gap = (theirs if isinstance(theirs, int) else theirs[0]), prompt["gap"][position]
            if gap > 0.05:
                assert ours == token, f"position {position} of {prompt['text'][:40]!r}: {ours}, not {token}; gap {gap}"
                compared += 1
    assert compared >= 500 and GOLDEN["positions"] >= 500, compared


def test_a_conversation_is_rendered_to_the_same_ids(server):
    messages = GOLDEN["chat"]["messages"]
    ids = server.http.post("/tokenize", json={"model": MODEL, "messages": messages}).json()["tokens"]
    assert ids == GOLDEN["chat"]["ids"]
