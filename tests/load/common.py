"""A server to do harm to, a tiny model for it, and what is asked of it. Nothing beyond Python's standard library."""
import argparse, http.client, json, os, pathlib, random, re, resource, shutil, signal, struct, subprocess, sys, tempfile, threading, time
from urllib.parse import urlsplit

ROOT = pathlib.Path(__file__).parents[2]
GUESTS = ROOT / "target/guests/wasm32-unknown-unknown/release"
ADMIN = "administrator"


def parser(text):
    parser = argparse.ArgumentParser(description=text.split("\n")[0], epilog=text.split("\n", 1)[-1], formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("GUESTHOUSE_BINARY", ROOT / "target/release/guesthouse")
    parser.add_argument("--binary", type=pathlib.Path, default=default)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    return parser


def number_of(metrics, name):
    values = [float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith((name + "{", name + " "))]
    return sum(values) if values else None


def process(pid):
    """Memory, threads and descriptors."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    field = lambda name: int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])
    return {"rss_mb": round(field("VmRSS") / 1024, 1), "threads": field("Threads"), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(base, method, path, body=None, key=None, timeout=60, headers=()):
    """Status and body; a body of JSON is read."""
    url = urlsplit(base)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)
    try:
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        fields = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}) | dict(headers)
        connection.request(method, path, data, fields)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        return answer.status, json.loads(text) if text[:1] in ("{", "[") else text
    finally:
        connection.close()


def tiny_model(folder):
    """The golden Llama case with a tokenizer of one word per token, in safetensors."""
    folder.mkdir()
    case = ROOT / "tests/golden/cases/llama"
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(case / name, folder)
    size = json.loads((case / "config.json").read_text())["vocab_size"]
    words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(size)}, "unk_token": "w0"}
    text = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None, "model": words}
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return folder


def tiny_gguf(folder, model):
    """The same model's weights and words as one GGUF file."""
    def text(value):
        return len(value.encode()).to_bytes(8, "little") + value.encode()

    def value(kind, data):
        return kind.to_bytes(4, "little") + data

    number = lambda n: value(4, struct.pack("<I", n))
    real = lambda x: value(6, struct.pack("<f", x))
    config = json.loads((model / "config.json").read_text())
    raw = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    tensors = {name: entry for name, entry in json.loads(raw[8:8 + length]).items() if name != "__metadata__"}
    words = [f"w{i}" for i in range(config["vocab_size"])]
    array = lambda kind, items: value(9, struct.pack("<IQ", kind, len(items)) + b"".join(items))
    meta = {
        "general.architecture": value(8, text("llama")), "llama.block_count": number(config["num_hidden_layers"]),
        "llama.context_length": number(config["max_position_embeddings"]), "llama.embedding_length": number(config["hidden_size"]),
        "llama.feed_forward_length": number(config["intermediate_size"]), "llama.attention.head_count": number(config["num_attention_heads"]),
        "llama.attention.head_count_kv": number(config["num_key_value_heads"]), "llama.rope.dimension_count": number(config["head_dim"]),
        "llama.rope.freq_base": real(config["rope_parameters"]["rope_theta"]), "llama.attention.layer_norm_rms_epsilon": real(config["rms_norm_eps"]),
        "llama.vocab_size": number(config["vocab_size"]),
        "tokenizer.ggml.model": value(8, text("llama")), "tokenizer.ggml.tokens": array(8, [text(w) for w in words]),
        "tokenizer.ggml.scores": array(6, [struct.pack("<f", -i) for i in range(len(words))]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", 1) for _ in words]),
        "tokenizer.ggml.bos_token_id": number(config["bos_token_id"]), "tokenizer.ggml.eos_token_id": number(config["eos_token_id"]),
    }
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    parts = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    head, body, at = b"", b"", 0
    for name, entry in tensors.items():
        stem = name.removesuffix(".weight")
        if found := re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem):
            renamed = f"blk.{found[1]}.{parts[found[2]]}.weight"
        else:
            renamed = names[stem] + ".weight"
        begin, end = (8 + length + x for x in entry["data_offsets"])
        shape = entry["shape"][::-1]
        head += text(renamed) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", 0, at)
        data = raw[begin:end]
        body += data + bytes(-len(data) % 32)
        at = len(body)
    fields = b"".join(text(name) + data for name, data in meta.items())
    start = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + fields + head
    path = folder / "tiny.gguf"
    path.write_bytes(start + bytes(-len(start) % 32) + body)
    return path


def sampler(number, filling=0):
    """A sampler module that differs from others of other numbers by a custom section; `filling` makes it longer."""
    payload = b"\x01n" + number.to_bytes(8, "little") + random.Random(number).randbytes(filling)
    return (GUESTS / "guesthouse_testing_foreign_sampler.wasm").read_bytes() + b"\x00" + leb128(len(payload)) + payload


def leb128(n):
    out = b""
    while n > 0x7F:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def user_cache():
    return pathlib.Path(os.environ.get("GUESTHOUSE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "guesthouse"))


def warm_cache(folder):
    """A cache of its own with what was compiled before of built-in guests."""
    modules = folder / "cache/modules"
    modules.mkdir(parents=True, mode=0o700)
    for sums in (user_cache() / "modules").glob("*.sha256"):
        code = sums.with_suffix(".cwasm")
        if code.exists():
            shutil.copy(sums, modules)
            shutil.copy(code, modules)
    return folder / "cache"


class Server:
    """A `guesthouse serve` process on free ports, with an admin API."""

    def __init__(self, binary, model, state, *flags, environment=(), limits=(), wait=300):
        if not pathlib.Path(state).exists():
            subprocess.run([binary, "tenant", "init", "--state", state], check=True, capture_output=True)
        command = [str(binary), "serve", str(model), "--served-model-name", "m", "--port", "0", "--state", str(state), "--admin-key", ADMIN,
                   "--admin-listen", "127.0.0.1:0", "--kv-cache-memory-bytes", str(64 << 20), *map(str, flags)]

        def limit():
            for what, value in limits:
                resource.setrlimit(what, value)

        begun = time.monotonic()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", env=os.environ | dict(environment), preexec_fn=limit)
        self.log, self.base, self.admin = [], None, None
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                line = re.sub(r"\x1b\[[0-9;]*m", "", line)
                self.log.append(line)
                if found := re.search(r"admin API on (http://\S+)", line):
                    self.admin = found[1]
                if found := re.search(r"serving on (http://\S+)", line):
                    self.base = found[1]
                    ready.set()
            ready.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        if not ready.wait(wait) or not self.base:
            self.process.kill()
            raise RuntimeError("the server did not start:\n" + "".join(self.log[-20:]))
        self.started_in = time.monotonic() - begun
        self.pid = self.process.pid

    def ask(self, method, path, body=None, key=None, **more):
        return ask(self.base, method, path, body, key, **more)

    def administer(self, method, path, body=None, **more):
        return ask(self.admin, method, "/admin/v1" + path, body, ADMIN, **more)

    def complete(self, key=None, tokens=4, **more):
        body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.ask("POST", "/v1/completions", body | more, key)

    def tenant(self, name, **policy):
        """Its key."""
        status, answer = self.administer("POST", "/tenants", {"id": name, "policy": policy})
        if status != 201:
            raise RuntimeError(f"tenant {name}: {status} {answer}")
        return answer["key"]

    def metric(self, name):
        return number_of(self.ask("GET", "/metrics", key=ADMIN)[1], name)

    def idle(self):
        return all(self.metric(name) == 0 for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))

    def alive(self):
        return self.process.poll() is None

    def said(self, *words):
        """The first line of the log with all of these words."""
        return next((line for line in list(self.log) if all(word in line for word in words)), None)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(10)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


class Faults:
    """What was found wrong; the first twenty are shown."""

    def __init__(self):
        self.found = []

    def check(self, right, text):
        if not right:
            self.found.append(text)
        return right

    def end(self, name, facts):
        """Prints the result in one line, and what was wrong; the exit code."""
        print(f"{name}: {'ok' if not self.found else 'FAILED'} {json.dumps(facts)}", flush=True)
        for text in self.found[:20]:
            print("  " + text, flush=True)
        return 1 if self.found else 0


def folder():
    """A temporary folder, gone with the value."""
    return tempfile.TemporaryDirectory(prefix="guesthouse-faults-")
