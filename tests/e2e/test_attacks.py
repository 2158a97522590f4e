"""A tenant attacks by its modules, its requests and its connections; another works on beside it and notices nothing but load.

`pytest -s` prints what the bystander got done, alone and beside the attacks (docs/security.md)."""
import json, multiprocessing, pathlib, socket, statistics, subprocess, threading, time

import httpx, pytest

from conftest import BINARY, Server

GUESTS = pathlib.Path(__file__).parents[2] / "target/guests/wasm32-unknown-unknown/release"
SECRET = "the bystander's own words"
LONGEST = 30  # seconds: every attack is over by then, on a busy machine too


def ask(http):
    body = {"prompt": SECRET, "max_tokens": 4, "temperature": 0}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def work(base, key, over, answers):
    """Asks the same thing again and again; tells the first answer, then of each whether it was the same, when it was asked for and when it came."""
    http = httpx.Client(base_url=base, headers={"authorization": f"Bearer {key}"}, timeout=120)
    expected = ask(http)
    answers.put(expected)
    while not over.is_set():
        begun = time.monotonic()
        try:
            found = ask(http)
        except Exception as error:
            found = repr(error)
        answers.put((found, begun, time.monotonic()))
    answers.put(None)


class Bystander:
    """A process of its own, as the attackers' clients shall not be what slows it down."""

    def __init__(self, base, key):
        context = multiprocessing.get_context("spawn")
        self.http = httpx.Client(base_url=base, headers={"authorization": f"Bearer {key}"}, timeout=120)
        self.over, self.told = context.Event(), context.Queue()
        self.answers, self.wrong = [], []
        self.process = context.Process(target=work, args=(base, key, self.over, self.told), daemon=True)
        self.process.start()
        self.expected = self.told.get(timeout=120)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while (told := self.told.get()) is not None:
            found, begun, at = told
            self.answers.append((begun, at))
            if found != self.expected:
                self.wrong.append(found)

    def end(self):
        self.over.set()
        self.process.join(60)

    def rate(self, start, end):
        return sum(1 for _, at in self.answers if start <= at < end) / (end - start)


class World:
    def __init__(self, folder):
        self.state = folder / "state.db"
        uploads = {"uploads": True, "quotas": {"concurrent_sequences": 8}, "pins": {"*": {"chat": "hostile"}}}
        self.attacker, self.bystander = self.add(folder, "attacker", uploads), self.add(folder, "bystander", {})
        self.server = Server("--state", str(self.state), "--served-model-name", "smollm2")
        self.http = httpx.Client(base_url=self.server.base, headers={"authorization": f"Bearer {self.attacker}"}, timeout=LONGEST)
        for name, file in [("hostile", "testing_hostile_chat"), ("foreign", "testing_foreign_chat"), ("sly", "testing_hostile_sampler")]:
            put = self.http.put(f"/v1/modules/{name}", content=(GUESTS / f"guesthouse_{file}.wasm").read_bytes(), timeout=300)
            assert put.status_code == 200, put.text
        self.beside = Bystander(self.server.base, self.bystander)
        begun = time.monotonic()
        time.sleep(10)
        self.alone = self.beside.rate(begun, time.monotonic())
        self.begun = time.monotonic()

    def add(self, folder, name, policy):
        file = folder / f"{name}.json"
        file.write_text(json.dumps(policy))
        command = [BINARY, "tenant", "add", name, "--state", str(self.state), "--policy", str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def chat(self, attack, **more):
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
                "chat_template_kwargs": {"attack": attack}, **more}
        return self.http.post("/v1/chat/completions", json=body)

    def sample(self, attack, **more):
        return self.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3, "sampler": "sly", "sampler_args": {"attack": attack}, **more})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("attacks"))
    yield world
    assert world.server.stop() == 0, "".join(world.server.log[-20:])


@pytest.fixture(autouse=True)
def felt(world, request):
    """With `-s`: what the bystander got done meanwhile."""
    begun = time.monotonic()
    yield
    end = time.monotonic()
    print(f"  bystander {world.beside.rate(begun, end) / world.alone:4.0%} for {end - begun:.2f} s: {request.node.name}")


def refused(answer, *words):
    assert answer.status_code >= 400, answer.text[:300]
    message = answer.json()["error"]["message"]
    assert all(word in message for word in words), message
    assert len(answer.content) < 4096 and "\x1b" not in answer.text and "\x07" not in answer.text, answer.text
    return message


@pytest.mark.parametrize("attack,words", [
    ("loop", "CPU"), ("host-call-loop", "CPU"), ("allocate", "memory"), ("recurse", "render failed"), ("panic", "out of ideas"), ("divide", "divide"),
    ("huge-text", ""), ("many-segments", ""), ("forge", "4000000000"), ("media", "media"), ("error", "alternate"),
])
def test_chat_modules_end_their_own_request(world, attack, words):
    refused(world.chat(attack), words)
    assert world.chat("harmless").status_code == 200


@pytest.mark.parametrize("attack", ["flood-log", "huge-log"])
def test_floods_of_log_lines_are_dropped(world, attack):
    lines = len(world.server.log)
    assert world.chat(attack).status_code == 200
    assert len(world.server.log) - lines < 300
    assert not any("\x1b]0;" in line for line in world.server.log), "control characters of guests are escaped"


@pytest.mark.parametrize("attack", ["loop", "allocate", "recurse", "panic", "leak-handles", "token-out-of-range", "nan-temperature", "many-stages",
                                    "many-tokens", "huge-list", "nothing-left", "step:no-such-row", "step:nan-score", "step:many-branches",
                                    "step:huge", "step:loop", "step:allocate", "step:token-out-of-range", "logits:nan", "logits:short"])
def test_samplers_end_their_own_request(world, attack):
    refused(world.sample(attack))
    assert world.sample("harmless").status_code == 200


def test_system_interfaces_give_nothing(world):
    """Pins make `foreign` the template; it may ask, and gets the empty form of everything."""
    put = world.http.put("/v1/modules/hostile", content=(GUESTS / "guesthouse_testing_foreign_chat.wasm").read_bytes(), timeout=300)
    assert put.status_code == 200, put.text
    tokens = lambda attack: world.chat(attack).json()["usage"]["prompt_tokens"]
    assert tokens("files") == tokens("environment") == 1, "no folder, no variable: '0' is one token"
    for attack in ("sleep", "exit", "panic"):
        refused(world.chat(attack), "hostile")
    back = world.http.put("/v1/modules/hostile", content=(GUESTS / "guesthouse_testing_hostile_chat.wasm").read_bytes(), timeout=300)
    assert back.status_code == 200, back.text


def test_many_at_once_stay_within_the_share(world):
    """64 loops at once: those beyond the attacker's sequences are told so, the others end."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(world.chat("loop").status_code)) for _ in range(64)]
    [thread.start() for thread in threads]
    [thread.join(LONGEST) for thread in threads]
    assert len(answers) == 64 and set(answers) <= {429, 500, 503}, answers


@pytest.mark.parametrize("name,body", [
    ("many prompts", {"prompt": ["x"] * 100_000, "max_tokens": 1}),
    ("many choices", {"prompt": "x", "n": 1_000_000}),
    ("deep", '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    ("long", {"prompt": "x " * 3_000_000}),
    ("regex", {"prompt": "x", "structured_outputs": {"regex": "a" * 2_000_000}}),
    ("schema", {"prompt": "x", "structured_outputs": {"json": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}}),
    ("grammar", {"prompt": "x", "structured_outputs": {"grammar": "root ::= " + "(" * 50_000}}),
    ("everything banned", {"prompt": "x", "allowed_token_ids": [5], "logit_bias": {"5": -100}, "bad_words": ["x"] * 100_000}),
])
def test_bodies_are_bounded(world, name, body):
    text = body if isinstance(body, str) else json.dumps(body)
    answer = world.http.post("/v1/completions", content=text, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, (name, answer.text[:300])
    assert len(answer.content) < 4096


def test_encoded_bodies_are_refused(world):
    assert world.http.post("/v1/completions", content=b"x", headers={"content-encoding": "gzip"}).status_code == 415


def test_keys_are_not_echoed(world):
    made_up = "gh_abcdefghijkl_" + "0123456789abcdef" * 4
    for headers in ({"authorization": f"Bearer {made_up}"}, {"x-api-key": made_up}, {"authorization": f"Basic {made_up}"}):
        answer = httpx.get(world.server.base + "/v1/models", headers=headers)
        assert answer.status_code == 401 and made_up not in answer.text
    log = "".join(world.server.log)
    assert made_up not in log and world.attacker not in log and world.bystander not in log


def test_idle_connections_hold_nobody_up(world):
    host, port = httpx.URL(world.server.base).host, httpx.URL(world.server.base).port
    idle = [socket.create_connection((host, port)) for _ in range(500)]
    assert world.chat("harmless").status_code == 200
    [connection.close() for connection in idle]


def test_the_bystander_noticed_nothing_but_load(world):
    beside, end = world.beside, time.monotonic()
    beside.end()
    assert not beside.wrong, beside.wrong[:3]
    rate = beside.rate(world.begun, end)
    longest = max(end - begun for begun, end in beside.answers)
    median = statistics.median(end - begun for begun, end in beside.answers)
    print(f"\nbystander: {world.alone:.2f} answers a second alone, {rate:.2f} beside the attacks ({rate / world.alone:.0%}); median {median:.3f} s, longest {longest:.2f} s")
    metrics = beside.http.get("/metrics").text
    assert "bystander" in metrics and "attacker" not in metrics and "hostile" not in metrics
    own = world.http.get("/metrics").text
    assert "attacker" in own and "bystander" not in own and SECRET not in own
    log = "".join(world.server.log)
    assert SECRET not in log, "request logs have no prompt text"
    names = lambda http: [module["name"] for module in http.get("/v1/modules").json().get("data", [])]
    assert set(names(world.http)) == {"hostile", "foreign", "sly"}
    assert world.http.get("/health").status_code == 200
