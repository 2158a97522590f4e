"""Structured output as a client sees it. Expected are the grammars' own definitions, read by Python: json, re, enumeration."""
import concurrent.futures, json, re

import openai, pytest
from pydantic import BaseModel, Field
from typing import Literal

from conftest import MODEL

MESSAGES = [{"role": "user", "content": "Tell me about a person, briefly."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def follows(text):
    value = json.loads(text)
    assert list(value) == ["name", "age", "kind", "tags"]
    assert re.fullmatch("[A-Z][a-z]{1,8}", value["name"])
    assert type(value["age"]) is int and 0 <= value["age"] <= 150
    assert value["kind"] in ["cat", "dog", None]
    assert 1 <= len(value["tags"]) <= 3 and all(type(tag) is bool for tag in value["tags"])


def chat(server, **more):
    extra = {k: more.pop(k) for k in list(more) if k in ("structured_outputs", "guided_regex", "guided_json", "use_beam_search", "ignore_eos", "min_tokens")}
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 400, "temperature": 1.0}
    return server.client.chat.completions.create(**{**fields, **more}, extra_body=extra)


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_answers_validate(server, temperature):
    answer = chat(server, response_format=as_format(SCHEMA), temperature=temperature, n=4, seed=1)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        follows(choice.message.content)


def test_the_client_s_own_classes(server):
    class Person(BaseModel):
        name: str = Field(max_length=12)
        kind: Literal["cat", "dog"]

    parsed = server.client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=300)
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_streams_have_the_same_text(server):
    fields = {"response_format": as_format(SCHEMA), "seed": 5}
    whole = chat(server, **fields).choices[0].message.content
    parts = [chunk.choices[0].delta.content or "" for chunk in chat(server, stream=True, **fields) if chunk.choices]
    assert "".join(parts) == whole
    follows(whole)


def test_any_object_is_a_beginning_of_json(server):
    answer = chat(server, response_format={"type": "json_object"}, max_tokens=300, seed=3).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    assert answer.message.content.startswith("{")


GBNF = 'root ::= item ("," item)*\nitem ::= "(" root? ")" | [a-c]{1,2}'


def nested(text):
    """Whether GBNF's language has it."""
    while True:
        shorter = re.sub(r"\((?:[a-c]{1,2}(?:,[a-c]{1,2})*)?\)", "a", text)
        if shorter == text:
            return bool(re.fullmatch(r"[a-c]{1,2}(,[a-c]{1,2})*", text))
        text = shorter


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_syntax(server, temperature):
    def text(outputs):
        choice = chat(server, structured_outputs=outputs, temperature=temperature, seed=2, max_tokens=200).choices[0]
        return choice.message.content, choice.finish_reason

    for pattern in [r"[0-9]{3}-[a-z]{2,6}", r"(é|日本|ab){2,4}"]:
        answer, _ = text({"regex": pattern})
        assert re.fullmatch(pattern, answer), answer
    answer, _ = text({"choice": ["positive", "negative", "日本語"]})
    assert answer in ["positive", "negative", "日本語"]
    answer, end = text({"grammar": GBNF})
    assert end == "length" or nested(answer), answer
    answer, _ = text({"grammar": 'start: WORD ("-" WORD)~2\nWORD: /[a-z]{2,4}/'})
    assert re.fullmatch("[a-z]{2,4}(-[a-z]{2,4}){2}", answer), answer
    follows(text({"json": json.dumps(SCHEMA)})[0])
    tags = {
        "type": "structural_tag",
        "structures": [{"begin": "<call=add>", "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}, "end": "</call>"}],
        "triggers": ["<call="],
    }
    answer, end = text({"structural_tag": tags})
    if end == "stop":
        free = re.sub(r'<call=add>\s*\{\s*"n"\s*:\s*[12]\s*\}\s*</call>', "", answer)
        assert "<call=" not in free


def test_the_tokens_reported_are_the_text(server):
    answer = chat(server, structured_outputs={"regex": "The answer is (yes|no)\\."}, logprobs=True).choices[0]
    assert answer.message.content in ["The answer is yes.", "The answer is no."]
    assert "".join(token.token for token in answer.logprobs.content).startswith(answer.message.content)


def test_beams_follow_too(server):
    completion = server.client.completions.create(
        model=MODEL, prompt="One of them:", max_tokens=20, n=2, temperature=0,
        extra_body={"use_beam_search": True, "best_of": 4, "structured_outputs": {"regex": "(cat|dog|bird) (runs|sings)"}},
    )
    texts = [choice.text for choice in completion.choices]
    assert len(set(texts)) == 2
    assert all(re.fullmatch("(cat|dog|bird) (runs|sings)", text) for text in texts), texts


def test_others_do_not_notice(server):
    plain = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    alone = server.client.completions.create(**plain).choices[0].text
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        constrained = [pool.submit(chat, server, response_format=as_format(SCHEMA), seed=seed) for seed in range(6)]
        hard = pool.submit(chat, server, structured_outputs={"regex": "((a|b|ab)*c){40}"}, max_tokens=40)
        others = [pool.submit(server.client.completions.create, **plain) for _ in range(4)]
        assert all(other.result().choices[0].text == alone for other in others)
        for answer in constrained:
            follows(answer.result().choices[0].message.content)
        hard.exception()


@pytest.mark.parametrize(
    "fields, param, place",
    [
        ({"response_format": as_format({"properties": {"a": {"items": {"type": "strin"}}}})}, "response_format", "/properties/a/items"),
        ({"response_format": as_format({"type": "array", "uniqueItems": True})}, "response_format", "uniqueItems"),
        ({"structured_outputs": {"regex": "a(b"}}, "structured_outputs", "line 1, column 2"),
        ({"structured_outputs": {"grammar": 'root ::= "a" | )'}}, "structured_outputs", "line 1, column 16"),
        ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs", "line 1, column 8"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "empty"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"grammar": "start: " + "(" * 100_000}}, "structured_outputs", "line 1, column 208"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "leave one out"),
    ],
)
def test_errors_name_field_and_place(server, fields, param, place):
    with pytest.raises(openai.BadRequestError) as error:
        chat(server, **fields)
    assert error.value.param.split(".")[0] == param
    assert place in error.value.message
