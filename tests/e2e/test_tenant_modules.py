"""Tenants bring chat modules of their own; nobody else notices, and nothing that runs is disturbed."""
import hashlib, json, pathlib, subprocess, threading

import httpx, pytest

from conftest import BINARY, Server

GUESTS = pathlib.Path(__file__).parents[2] / "target/guests/wasm32-unknown-unknown/release"
HELLO = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0}


def guest(name):
    """Two that do with the starter model's control tokens: a built-in one, and one that renders next to nothing."""
    return (GUESTS / {"chatml": "guesthouse_chat_chatml.wasm", "foreign": "guesthouse_testing_foreign_chat.wasm"}[name]).read_bytes()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Tenant:
    def __init__(self, server, key):
        self.http = httpx.Client(base_url=server.base, headers={"authorization": f"Bearer {key}"}, timeout=300)

    def put(self, name, data, **kwargs):
        return self.http.put(f"/v1/modules/{name}", content=data, **kwargs)

    def prompt_tokens(self):
        answer = self.http.post("/v1/chat/completions", json=HELLO)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]


class World:
    def __init__(self, folder):
        self.state = folder / "state.db"
        self.keys = {}
        policy = folder / "policy.json"
        policy.write_text(json.dumps({"uploads": True, "pins": {"*": {"chat": "mine"}}}))
        self.keys["a"] = self.add("a", "--policy", str(policy))
        self.keys["b"] = self.add("b")
        self.start()

    def add(self, name, *flags):
        command = [BINARY, "tenant", "add", name, "--state", str(self.state), *flags]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def start(self):
        self.server = Server("--state", str(self.state), "--served-model-name", "smollm2")
        self.a, self.b = (Tenant(self.server, self.keys[name]) for name in "ab")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("tenants"))
    yield world
    assert world.server.stop() == 0, "".join(world.server.log[-20:])


def test_a_module_serves_its_tenant_alone(world):
    a, b = world.a, world.b
    before = b.prompt_tokens()
    assert b.put("mine", guest("foreign")).status_code == 403
    put = a.put("mine", guest("foreign"))
    assert put.status_code == 200, put.text
    assert put.json()["digest"] == digest(guest("foreign"))
    foreign = a.prompt_tokens()
    assert foreign != before, "another template, another prompt"
    assert b.prompt_tokens() == before
    assert b.http.get("/v1/modules/mine").status_code == 403
    assert [m["name"] for m in a.http.get("/v1/modules").json()["data"]] == ["mine"]

    # A worse one leaves the old one serving, and says why.
    for data, words in [(b"#!/bin/sh", "not WebAssembly"), (guest("chatml")[:-100], "malformed")]:
        bad = a.put("mine", data)
        assert bad.status_code == 400 and words in bad.json()["error"]["message"], bad.text
    assert a.put("Mine", guest("chatml")).status_code == 400
    assert a.put("mine", guest("chatml"), headers={"content-encoding": "gzip"}).status_code == 415
    assert a.prompt_tokens() == foreign

    # Replaced, and rolled back.
    assert a.put("mine", guest("chatml")).status_code == 200
    chatml = a.prompt_tokens()
    assert chatml != foreign
    history = a.http.get("/v1/modules/mine/history").json()["data"]
    assert [(v["digest"], v["live"]) for v in history] == [(digest(guest("chatml")), True), (digest(guest("foreign")), False)]
    back = a.http.post("/v1/modules/mine/rollback", json={"digest": digest(guest("foreign"))})
    assert back.status_code == 200, back.text
    assert a.prompt_tokens() == foreign
    assert a.http.post("/v1/modules/mine/rollback", json={"digest": "sha256:" + 64 * "0"}).status_code == 400
    assert b.prompt_tokens() == before


def test_a_stream_ends_on_the_version_it_began_with(world):
    a = world.a
    assert a.put("mine", guest("foreign")).status_code == 200
    body = HELLO | {"stream": True, "max_tokens": 200, "ignore_eos": True, "stream_options": {"include_usage": True}}
    foreign, usages, failed = a.prompt_tokens(), [], []

    def stream():
        with a.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        failed.append(event)
                    if event.get("usage"):
                        usages.append(event["usage"])
                    began.set()

    began = threading.Event()
    thread = threading.Thread(target=stream)
    thread.start()
    assert began.wait(60)
    for name in ["chatml", "foreign", "chatml"]:
        assert a.put("mine", guest(name)).status_code == 200
    chatml = a.prompt_tokens()
    thread.join(300)
    assert not failed
    assert [(u["prompt_tokens"], u["completion_tokens"]) for u in usages] == [(foreign, 200)]
    assert chatml != foreign


def test_modules_outlive_kill_9(world):
    a = world.a
    assert a.put("mine", guest("chatml")).status_code == 200
    chatml = a.prompt_tokens()
    world.server.process.kill()
    world.server.process.wait()
    world.start()
    assert world.a.prompt_tokens() == chatml
    assert world.a.http.delete("/v1/modules/mine").status_code == 200
    # The pin names nothing now.
    assert world.a.http.post("/v1/chat/completions", json=HELLO).status_code >= 400
    assert world.a.http.post("/v1/modules/mine/rollback", json={"digest": digest(guest("chatml"))}).status_code == 200
    assert world.a.prompt_tokens() == chatml


def test_a_module_that_cannot_be_used_says_so_and_nothing_takes_its_place(world):
    before = world.b.prompt_tokens()
    assert world.a.put("mine", guest("foreign")).status_code == 200
    assert world.server.stop() == 0
    (world.state.parent / "modules" / f"{digest(guest('foreign'))[7:]}.wasm").unlink()
    world.start()
    a = world.a
    listed = a.http.get("/v1/modules").json()["data"]
    assert [(m["name"], m["digest"], m["unusable"]) for m in listed] == [("mine", digest(guest("foreign")), "its file is missing or damaged")]
    assert a.http.get("/v1/modules/mine").json() == listed[0]
    refused = a.http.post("/v1/chat/completions", json=HELLO)
    assert refused.status_code == 500
    message = refused.json()["error"]["message"]
    assert "chat module 'mine' cannot be used: its file is missing" in message and "/" not in message, message
    assert world.b.prompt_tokens() == before
    assert a.put("mine", guest("foreign")).status_code == 200
    assert a.prompt_tokens() != before
    assert "unusable" not in a.http.get("/v1/modules/mine").json()
