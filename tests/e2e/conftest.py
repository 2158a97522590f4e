"""One server for all tests: the starter model on a free port."""
import os, re, subprocess, threading, time

import httpx, openai, pytest

BINARY = os.environ["GUESTHOUSE_BINARY"]
MODEL = os.environ.get("GUESTHOUSE_E2E_MODEL", "smollm2")
FLAGS = os.environ.get("GUESTHOUSE_E2E_FLAGS", "").split()


class Server:
    """A `guesthouse serve` process."""

    def __init__(self, *flags, model=MODEL, wait=600):
        self.process = subprocess.Popen(
            [BINARY, "serve", model, "--port", "0", *FLAGS, *flags], stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self.log, self.base = [], None
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                found = re.search(r"serving on (https?://[^\s\x1b\"]+)", line)
                if found:
                    self.base = found.group(1)
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        assert ready.wait(wait) and self.base, "the server did not start:\n" + "".join(self.log[-20:])
        self.http = httpx.Client(base_url=self.base, timeout=300)
        self.client = openai.OpenAI(base_url=self.base + "/v1", api_key="none", max_retries=0, timeout=300)

    def metric(self, name):
        values = [float(l.rsplit(" ", 1)[1]) for l in self.http.get("/metrics").text.splitlines() if re.match(rf"{re.escape(name)}(\{{|\s)", l)]
        assert values, f"no metric {name}"
        return sum(values)

    def until(self, condition, seconds=30):
        end = time.time() + seconds
        while not condition():
            assert time.time() < end, "not in time"
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    assert server.stop() == 0, "".join(server.log[-20:])
