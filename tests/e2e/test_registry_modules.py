"""The administrator has modules fetched from a registry that these tests run."""
import hashlib, http.server, json, pathlib, re, subprocess, threading

import httpx, pytest

from conftest import BINARY, Server

GUESTS = pathlib.Path(__file__).parents[2] / "target/guests/wasm32-unknown-unknown/release"
CHATML = (GUESTS / "guesthouse_chat_chatml.wasm").read_bytes()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """What it was told to answer, by path: bytes, or where to go instead."""

    def __init__(self):
        self.says, self.asked = {"/v2/": b""}, []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                registry.asked.append(self.path)
                said = registry.says.get(self.path)
                if isinstance(said, str):
                    self.send_response(307)
                    self.send_header("Location", said)
                else:
                    self.send_response(404 if said is None else 200)
                self.send_header("Content-Length", str(len(said) if isinstance(said, bytes) else 0))
                self.end_headers()
                if isinstance(said, bytes):
                    self.wfile.write(said)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def keep(self, module):
        self.says[f"/v2/team/chat/blobs/{digest(module)}"] = module
        config = {"mediaType": "application/vnd.wasm.config.v0+json", "digest": digest(b"{}"), "size": 2}
        layer = {"mediaType": "application/wasm", "digest": digest(module), "size": len(module)}
        manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [layer]}).encode()
        self.says[f"/v2/team/chat/manifests/{digest(manifest)}"] = manifest
        return f"oci://{self.host}/team/chat@{digest(manifest)}"


class World:
    def __init__(self, folder):
        self.registry, self.other = Registry(), Registry()
        state = str(folder / "state.db")
        add = [BINARY, "tenant", "add", "a", "--uploads", "--state", state]
        self.key = subprocess.run(add, check=True, capture_output=True, text=True).stdout.strip()
        self.server = Server(
            "--state", state, "--admin-key", "root", "--admin-listen", "127.0.0.1:0",
            "--oci-registry", f"http://{self.registry.host}", "--oci-private", self.registry.host,
        )
        admin = next(m.group(1) for l in self.server.log if (m := re.search(r"admin API on (http://\S+?)(\x1b|\s|$)", l)))
        self.admin = httpx.Client(base_url=admin, headers={"authorization": "Bearer root"}, timeout=300)

    def fetch(self, source, path="/admin/v1/modules/house"):
        return self.admin.put(path, json={"source": source})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("registry"))
    yield world
    assert world.server.stop() == 0, "".join(world.server.log[-20:])


def test_a_pinned_module_serves(world):
    source = world.registry.keep(CHATML)
    put = world.fetch(source)
    assert put.status_code == 200, put.text
    assert put.json()["source"] == source and put.json()["digest"] == digest(CHATML)
    history = world.admin.get("/admin/v1/modules/house/history").json()["data"]
    assert [v["source"] for v in history] == [source]
    assert world.fetch(source, "/admin/v1/modules/own?tenant=a").status_code == 200
    own = httpx.get(world.server.base + "/v1/modules/own", headers={"x-api-key": world.key})
    assert own.status_code == 200 and own.json()["source"] == source


def test_what_is_not_allowed_is_not_asked(world):
    source = world.registry.keep(CHATML)
    for wrong, words in [
        (world.other.keep(CHATML), "--oci-registry"),
        (source.split("@")[0] + ":latest", "no digest"),
        (source.replace("127.0.0.1", "localhost"), "not allowed"),
    ]:
        refused = world.fetch(wrong)
        assert refused.status_code == 400 and words in refused.json()["error"]["message"], refused.text
    for to in [f"http://{world.other.host}/x", f"https://{world.other.host}/x", "https://169.254.169.254/latest/meta-data/"]:
        world.registry.says[f"/v2/team/chat/blobs/{digest(CHATML)}"] = to
        refused = world.fetch(source)
        assert refused.status_code == 400 and "is refused" in refused.json()["error"]["message"], refused.text
    assert world.other.asked == []
    # A tenant's body is a module, whatever it says.
    own = httpx.put(world.server.base + "/v1/modules/x", headers={"x-api-key": world.key}, json={"source": source})
    assert own.status_code == 400 and "WebAssembly" in own.text, own.text
