"""What operators rely on: logs without text, request ids, signals, TLS, traces."""
import http.server, json, pathlib, re, signal, ssl, threading

import httpx, pytest

from conftest import Server

SECRET = "Xylophonically"


@pytest.fixture(scope="module")
def logged():
    server = Server("--log-format", "json")
    yield server
    server.stop()


def lines(server, message):
    found = [json.loads(line) for line in server.log if line.startswith("{")]
    return [line for line in found if line.get("message") == message]


def test_a_request_has_an_id_and_a_line_without_its_text(logged):
    body = {"prompt": SECRET + " said", "max_tokens": 4}
    answer = logged.http.post("/v1/completions", json=body, headers={"x-request-id": "e2e-1.a_B"})
    assert answer.headers["x-request-id"] == "e2e-1.a_B"
    refused = logged.http.post("/v1/completions", content=SECRET, headers={"x-request-id": "not allowed"})
    assert refused.status_code == 400
    assert re.fullmatch(r"req-[0-9a-f]{32}", refused.headers["x-request-id"])
    logged.until(lambda: len(lines(logged, "request")) >= 2)
    first, second = lines(logged, "request")[:2]
    assert first["span"]["id"] == "e2e-1.a_B"
    assert (first["status"], first["route"], first["completion_tokens"]) == (200, "/v1/completions", 4)
    assert first["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert (second["status"], second["span"]["id"]) == (400, refused.headers["x-request-id"])
    assert SECRET not in "".join(logged.log)


def test_no_core_dumps(logged):
    limits = open(f"/proc/{logged.process.pid}/limits").read()
    assert re.search(r"^Max core file size\s+0\s+0\s", limits, re.M), limits


def stream(server, events, begun):
    body = {"prompt": "Once", "max_tokens": 120, "ignore_eos": True, "stream": True}
    try:
        with httpx.stream("POST", server.base + "/v1/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line:
                    events.append(line)
                    begun.set()
    except httpx.TransportError:
        begun.set()


def streaming(server):
    events, begun = [], threading.Event()
    thread = threading.Thread(target=stream, args=(server, events, begun))
    thread.start()
    assert begun.wait(60)
    return events, thread


def test_a_signal_lets_a_stream_end():
    server = Server()
    events, thread = streaming(server)
    server.process.send_signal(signal.SIGTERM)
    thread.join(120)
    assert events[-1] == "data: [DONE]"
    assert server.process.wait(60) == 0, "".join(server.log[-20:])
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.base + "/health")


def test_a_second_signal_cuts_it_off():
    server = Server()
    events, thread = streaming(server)
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: any("shutting down" in line for line in server.log))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 1
    thread.join(60)
    assert events[-1] != "data: [DONE]"


PEM = pathlib.Path(__file__).parents[2] / "host/server/src/http/tls/testdata"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_https_and_traces():
    got = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    server = Server(
        "--ssl-certfile", str(PEM / "ec-certificate.pem"), "--ssl-keyfile", str(PEM / "ec-sec1.pem"),
        "--otlp-traces-endpoint", f"http://127.0.0.1:{collector.server_port}/v1/traces",
    )
    assert server.base.startswith("https://")
    url = server.base.replace("127.0.0.1", "localhost") + "/v1/completions"
    body = {"prompt": SECRET + " said", "max_tokens": 4}
    trusting = ssl.create_default_context(cafile=PEM / "ec-certificate.pem")
    answer = httpx.post(url, json=body, headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, verify=trusting, timeout=60)
    assert answer.status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.post(url, json=body)
    assert server.stop() == 0, "".join(server.log[-20:])
    # Sent at the end at the latest.
    collector.shutdown()
    assert {path for path, _ in got} == {"/v1/traces"}
    sent = b"".join(body for _, body in got)
    assert bytes.fromhex(TRACE) in sent and answer.headers["x-request-id"].encode() in sent
    assert b"llm_request" in sent and b"gen_ai.usage.completion_tokens" in sent
    assert SECRET.encode() not in sent
