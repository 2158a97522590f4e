"""An architecture that nobody has ever heard of, from `guesthouse module new` to answers, while a server runs: as
docs/add-an-architecture.md says. The expected numbers are newcomer/reference.py's."""
import pathlib, shutil, subprocess, time

import pytest

from conftest import BINARY, Server
from newcomer import reference
from projects import ROOT, build, run

HERE = pathlib.Path(__file__).parent / "newcomer"
KEY = {"authorization": "Bearer opensesame"}
PROMPT = "The guest builds."


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What the template makes, built as it is."""
    folder = tmp_path_factory.mktemp("outside") / "sandwich"
    out = run(BINARY, "module", "new", "model", "sandwich", "--path", str(folder), "--sdk", str(ROOT / "guests" / "sdk"))
    assert "SandwichForCausalLM" in out
    # The versions that the built-in guests are built from are here already.
    shutil.copy(ROOT / "guests" / "Cargo.lock", folder)
    checked = run(BINARY, "module", "check", str(build(folder)))
    assert "role      graph" in checked and "builds    SandwichForCausalLM" in checked and "check     ok" in checked
    imports = next(line for line in checked.splitlines() if line.startswith("imports"))
    assert "wasi" not in imports
    return folder


@pytest.fixture(scope="module")
def module(project):
    """The newcomer's own architecture in place of the template's."""
    code = (HERE / "lib.rs").read_text()
    assert len(code.splitlines()) < 100
    (project / "src" / "lib.rs").write_text(code)
    return build(project)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server with a model of its own and an empty folder of modules."""
    folder = tmp_path_factory.mktemp("modules")
    config = tmp_path_factory.mktemp("first") / "first"
    config.mkdir()
    shutil.copy(ROOT / "tests" / "golden" / "cases" / "llama" / "config.json", config)
    server = Server("--load-format", "dummy", "--served-model-name", "first", "--admin-key", "opensesame",
                    "--admin-listen", "127.0.0.1:0", "--modules", str(folder), model=str(config))
    line = next(line for line in server.log if "admin API on" in line)
    server.admin = "http://" + line.split("admin API on http://")[1].split("\x1b")[0].strip() + "/admin/v1/"
    server.folder = folder
    yield server
    assert server.stop() == 0, "".join(server.log[-20:])


def admin(server, method, path, status=200, **more):
    answer = server.http.request(method, server.admin + path, headers=KEY, **more)
    assert answer.status_code == status, answer.text
    return answer.json()


def assert_it_is_the_reference(server, tensors, model):
    ids = [ord(c) - 32 for c in PROMPT]
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    found = answer["choices"][0]["logprobs"]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    expected = list(reference.Model(tensors).greedy(ids, 8))
    assert found["tokens"] == [f"token_id:{token}" for token, _ in expected]
    for top, (_, logprobs) in zip(found["top_logprobs"], expected):
        assert len(top) >= 5
        for name, value in top.items():
            assert abs(value - logprobs[int(name.removeprefix("token_id:"))]) < 2e-4
    assert answer["choices"][0]["text"] == "".join(chr(32 + token) for token, _ in expected)


def test_a_new_architecture_is_served_without_a_restart(running, module, tmp_path):
    tensors = reference.weights(seed=4)
    reference.save(tmp_path / "tiny", tensors)
    load = {"model": str(tmp_path / "tiny"), "name": "tiny"}

    refused = admin(running, "POST", "models", 400, json=load)
    assert "SandwichForCausalLM" in refused["error"]["message"] and "module new" in refused["error"]["message"]
    put = admin(running, "PUT", "modules/sandwich", content=module.read_bytes())
    assert put["role"] == "graph" and put["builds"] == ["SandwichForCausalLM"]
    loaded = admin(running, "POST", "models", 201, json=load)
    assert loaded["modules"]["graph"] == {"name": "sandwich", "digest": put["digest"]}
    assert loaded["max_model_len"] == 64

    names = [model["id"] for model in running.http.get("/v1/models").json()["data"]]
    assert names == ["first", "tiny"]
    assert_it_is_the_reference(running, tensors, "tiny")
    # The first model never noticed, and still is what a request without a name means.
    plain = running.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 2, "ignore_eos": True}).json()
    assert plain["model"] == "first" and plain["usage"]["completion_tokens"] == 2

    admin(running, "DELETE", "modules/sandwich")
    assert_it_is_the_reference(running, tensors, "tiny")
    admin(running, "DELETE", "models/tiny")
    gone = running.http.post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    assert gone.status_code == 404
    admin(running, "POST", "models", 400, json=load)


def test_a_module_in_the_watched_folder_serves(running, module, tmp_path):
    tensors = reference.weights(seed=8)
    reference.save(tmp_path / "tiny", tensors)
    target = running.folder / "watched.wasm"
    target.write_bytes(b"\0asm, but not really")
    running.until(lambda: admin(running, "GET", "modules")["rejected"])
    assert str(target) == admin(running, "GET", "modules")["rejected"][0]["file"]
    shutil.copy(module, target)
    running.until(lambda: not admin(running, "GET", "modules")["rejected"])
    assert admin(running, "GET", "modules/watched")["source"] == str(target)
    admin(running, "POST", "models", 201, json={"model": str(tmp_path / "tiny"), "name": "watched-tiny"})
    assert_it_is_the_reference(running, tensors, "watched-tiny")
    target.unlink()
    running.until(lambda: running.http.get(running.admin + "modules/watched", headers=KEY).status_code == 404)
    assert_it_is_the_reference(running, tensors, "watched-tiny")
    admin(running, "DELETE", "models/watched-tiny")


def test_unloading_leaves_running_requests_alone(running):
    config = running.folder.parent / "again"
    if not config.exists():
        config.mkdir()
        shutil.copy(ROOT / "tests" / "golden" / "cases" / "llama" / "config.json", config)
    admin(running, "POST", "models", 201, json={"model": str(config), "name": "again", "load_format": "dummy"})
    with running.client.completions.create(model="again", prompt="hello", max_tokens=100, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(stream)
        admin(running, "DELETE", "models/again")
        assert [m["id"] for m in admin(running, "GET", "models")["data"]] == ["first"]
        last = None
        for chunk in stream:
            last = chunk.choices[0] if chunk.choices else last
    assert last.finish_reason == "length"


def test_the_admin_api_wants_its_key_and_this_machine(running):
    for headers in ({}, {"authorization": "Bearer wrong"}):
        for method, path in (("GET", "models"), ("PUT", "modules/x"), ("DELETE", "models/first"), ("GET", "nothing")):
            assert running.http.request(method, running.admin + path, headers=headers).status_code == 401
    assert running.http.get("/admin/v1/models", headers=KEY).status_code == 404, "not on the public address"
    refused = subprocess.run([BINARY, "serve", "x", "--admin-key", "k", "--admin-listen", "0.0.0.0:1"], capture_output=True, text=True)
    assert refused.returncode == 2 and "loopback" in refused.stderr
