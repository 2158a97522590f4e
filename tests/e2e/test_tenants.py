"""Two tenants of one server: what one has, the other neither sees nor pays for."""
import json, re, subprocess

import httpx, pytest

from conftest import BINARY, MODEL, Server

PROMPT = "A preamble that both tenants send, word for word, many times over. " * 12


def tenant(state, *args):
    done = subprocess.run([BINARY, "tenant", *args, "--state", state], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class House:
    """A server with the tenants `a` (all models), `b` (one name, few requests) and `c`, which has asked for nothing yet."""

    def __init__(self, folder):
        self.state = str(folder / "state.db")
        self.keys = {
            "a": tenant(self.state, "add", "a"),
            "b": tenant(self.state, "add", "b", "--models", "second", "--requests-per-minute", "600"),
            "c": tenant(self.state, "add", "c"),
        }
        flags = ["--state", self.state, "--served-model-name", MODEL, "second", "--admin-key", "root", "--admin-listen", "127.0.0.1:0"]
        self.server = Server(*flags)
        admin = next(m.group(1) for l in self.server.log if (m := re.search(r"admin API on (http://\S+?)(\x1b|\s|$)", l)))
        self.admin = httpx.Client(base_url=admin, headers={"authorization": "Bearer root"}, timeout=60)

    def set(self, who, policy):
        answer = self.admin.patch(f"/admin/v1/tenants/{who}", json={"policy": policy})
        assert answer.status_code == 200, answer.text

    def get(self, who, path):
        return self.server.http.get(path, headers={"authorization": f"Bearer {self.keys[who]}"})

    def post(self, who, path, **body):
        return self.server.http.post(path, json=body, headers={"x-api-key": self.keys[who]})

    def complete(self, who, **more):
        return self.post(who, "/v1/completions", **{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, **more})


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("tenants"))
    yield house
    assert house.server.stop() == 0, "".join(house.server.log[-20:])


def test_every_route_but_the_open_ones_needs_a_key(house):
    for path in ("/health", "/ping", "/docs", "/openapi.json"):
        assert house.server.http.get(path).status_code == 200, path
    for path in ("/v1/models", "/metrics", "/version", "/tokenize", "/v1/nothing"):
        refused = house.server.http.get(path, headers={"authorization": "Bearer gh_wrongwrongwr_secret"})
        assert refused.status_code == 401 and "secret" not in refused.text, path


def test_models_of_others_look_as_if_they_did_not_exist(house):
    ids = lambda who: [card["id"] for card in house.get(who, "/v1/models").json()["data"]]
    assert ids("a") == [MODEL, "second"] and ids("b") == ["second"]
    hidden, absent = house.complete("b", model=MODEL), house.complete("b", model="none")
    assert hidden.status_code == absent.status_code == 404
    assert hidden.text.replace(MODEL, "none") == absent.text
    assert house.complete("b", model="second").status_code == 200


def test_a_prompt_that_one_cached_is_no_hit_of_another(house):
    def cached(who):
        answer = house.complete(who, prompt=PROMPT, cache_salt="the same")
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("a") == 0
    assert cached("a") > 0
    assert cached("b") == 0
    assert cached("b") > 0


def test_a_pinned_module_serves_its_tenant_alone(house):
    house.set("b", {"pins": {"*": {"sampler": "none"}}})
    refused = house.complete("b")
    assert refused.status_code == 500
    message = refused.json()["error"]["message"]
    assert "'none'" in message and "pinned" in message and "does not exist" in message
    assert house.complete("a").status_code == 200
    house.set("b", {"pins": {"*": {"graph": "none"}}})
    gone = house.complete("b", model="second")
    assert gone.status_code == 404 and "graph module `none`" in gone.json()["error"]["message"]
    assert house.get("b", "/v1/models").json()["data"] == []
    house.set("b", {"pins": None})
    assert house.complete("b").status_code == 200


def test_defaults_stand_for_what_a_request_leaves_out(house):
    house.set("b", {"defaults": {"max_tokens": 2}})
    ask = lambda **more: house.post("b", "/v1/completions", prompt="Count: 1 2 3", ignore_eos=True, **more).json()["usage"]["completion_tokens"]
    assert ask() == 2 and ask(max_tokens=3) == 3
    house.set("b", {"defaults": None})


def test_metrics_are_the_callers_own(house):
    own = house.get("b", "/metrics").text
    assert 'tenant="b"' in own and 'tenant="a"' not in own and "guesthouse:step_" not in own
    assert re.search(r'vllm:request_success_total\{model_name="[^"]*",tenant="b",finished_reason="length"\} [1-9]', own)
    everyone = house.server.http.get("/metrics", headers={"authorization": "Bearer root"}).text
    for who in "ab":
        assert re.search(rf'guesthouse:tenant_generation_tokens_total\{{model_name="[^"]*",tenant="{who}"\}} [1-9]', everyone)
    # vLLM's own names hold everyone's requests once.
    assert not re.search(r'vllm:[a-z_]+\{[^}]*tenant=', everyone)


def test_over_a_limit_is_429_with_its_name_and_when_to_try_again(house):
    house.set("c", {"quotas": {"requests_per_minute": 1}})
    answers = [house.complete("c") for _ in range(3)]
    over = answers[-1]
    assert over.status_code == 429 and 1 <= int(over.headers["retry-after"]) <= 60
    error = over.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", "requests_per_minute")
    assert over.headers["x-ratelimit-limit-requests"] == "1" and over.headers["x-ratelimit-remaining-requests"] == "0"
    assert house.complete("a").status_code == 200
    house.set("c", {"quotas": {"requests_per_minute": None}})


def test_what_tenants_used_is_kept(house):
    def used():
        days = house.admin.get("/admin/v1/tenants/a/usage")
        assert days.status_code == 200, days.text
        return json.dumps(days.json())

    house.server.until(lambda: re.search(r'"output_tokens": [1-9]', used()), seconds=20)


def test_a_state_file_that_is_missing_opens_no_server(tmp_path):
    state = str(tmp_path / "state.db")
    serve = [BINARY, "serve", MODEL, "--port", "0", "--state", state]
    refused = subprocess.run(serve, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert state in refused.stderr and "tenant init" in refused.stderr, refused.stderr
    assert not list(tmp_path.iterdir())
    assert tenant(state, "init") == ""
    server = Server("--state", state)
    assert server.http.get("/v1/models").status_code == 401
    assert server.stop() == 0
