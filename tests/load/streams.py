"""Many streaming clients, some of which leave: nothing is lost or mixed up, and the server is afterwards what it was before.

    streams.py --base http://127.0.0.1:8000 --pid PID [--clients 1000] [--seconds 600] [--disconnects 0.2] [--key KEY]

Each request allows one token alone, which no other request of the moment has: whatever else arrives belongs to somebody else.
Exits with 1 if a response was lost or mixed, or if KV blocks, descriptors, threads or memory did not return to where they were.
"""
import argparse, asyncio, json, os, pathlib, random, sys, time
from urllib.parse import urlsplit

parser = argparse.ArgumentParser()
parser.add_argument("--base", required=True)
parser.add_argument("--pid", type=int, required=True)
parser.add_argument("--clients", type=int, default=1000)
parser.add_argument("--seconds", type=float, default=600)
parser.add_argument("--disconnects", type=float, default=0.2)
parser.add_argument("--max-tokens", type=int, default=64)
parser.add_argument("--settle", type=float, default=15, help="seconds between the last client and the last look")
parser.add_argument("--grown", type=float, default=64, help="MB that the process may have grown after the first minute")
parser.add_argument("--key")
args = parser.parse_args()
url = urlsplit(args.base)
FIRST = 1000  # ids of ordinary tokens in every vocabulary that is used here
counts = dict.fromkeys(("complete", "left", "refused", "lost", "mixed", "tokens"), 0)
faults = []


def head(method, path, body=b""):
    key = f"Authorization: Bearer {args.key}\r\n" if args.key else ""
    return f"{method} {path} HTTP/1.1\r\nHost: {url.netloc}\r\n{key}Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def get(path):
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(head("GET", path))
    answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n\r\n", 1)[1].decode(errors="replace")


def fault(kind, text):
    counts[kind] += 1
    if len(faults) < 20:
        faults.append(f"{kind}: {text}")


async def request(number, rng):
    token, length = FIRST + number, rng.randint(1, args.max_tokens)
    leaves = rng.random() < args.disconnects
    leave_after = rng.randint(0, length) if leaves else None
    body = json.dumps({"prompt": [FIRST + rng.randrange(20000) for _ in range(rng.randint(1, 40))], "stream": True,
                       "max_tokens": length, "allowed_token_ids": [token], "ignore_eos": True,
                       "logprobs": 0, "return_tokens_as_token_ids": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(head("POST", "/v1/completions", body))
        if leave_after == 0:
            await asyncio.sleep(rng.random() * 0.05)
            counts["left"] += 1
            return
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 503 " in status or b" 429 " in status:
            counts["refused"] += 1
            await asyncio.sleep(rng.random())
            return
        if b" 200 " not in status:
            return fault("lost", status.decode() + (await reader.read(300)).decode(errors="replace"))
        got, usage, done = [], None, False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                return fault("lost", json.dumps(event)[:300])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                got += [int(text.removeprefix("token_id:")) for text in (choice.get("logprobs") or {}).get("tokens", [])]
            if leave_after is not None and len(got) >= leave_after:
                counts["left"] += 1
                return
        counts["tokens"] += len(got)
        if any(id != token for id in got):
            fault("mixed", f"{token} expected, {got[:8]} found")
        elif not done or (usage or {}).get("completion_tokens") != length or (got and len(got) != length):
            fault("lost", f"{length} tokens expected, {len(got)} found, usage {usage}, done {done}")
        else:
            counts["complete"] += 1
    finally:
        writer.close()


async def client(number, until):
    rng = random.Random(number)
    while time.monotonic() < until:
        try:
            await asyncio.wait_for(request(number, rng), 300)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError) as error:
            fault("lost", repr(error))
            await asyncio.sleep(0.1)


def number_of(metrics, name):
    values = [float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{") or line.startswith(name + " ")]
    return sum(values) if values else None


async def look():
    status = pathlib.Path(f"/proc/{args.pid}/status").read_text()
    field = lambda name: int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])
    metrics = await get("/metrics")
    return {"rss_mb": field("VmRSS") / 1024, "threads": field("Threads"), "descriptors": len(os.listdir(f"/proc/{args.pid}/fd")),
            "running": number_of(metrics, "vllm:num_requests_running"), "waiting": number_of(metrics, "vllm:num_requests_waiting"),
            "kv_usage": number_of(metrics, "vllm:kv_cache_usage_perc"), "health": (await get("/health"))[:80]}


async def main():
    # Tables, pools and caches fill in the first part; growth after it would go on.
    print("before", json.dumps(await look()), flush=True)
    begun = time.monotonic()
    until = begun + args.seconds
    clients = [asyncio.create_task(client(n, until)) for n in range(args.clients)]
    warm = None
    while time.monotonic() < until:
        await asyncio.sleep(min(30, max(0.1, until - time.monotonic())))
        seen = await look()
        if warm is None and time.monotonic() > begun + min(60, args.seconds / 4):
            warm = seen
        print(round(time.monotonic() - begun), json.dumps(seen), json.dumps(counts), flush=True)
    await asyncio.gather(*clients)
    await asyncio.sleep(args.settle)
    after = await look()
    print("after", json.dumps(after), json.dumps(counts), flush=True)
    wrong = list(faults)
    for name in ("running", "waiting", "kv_usage"):
        if after[name]:
            wrong.append(f"{name} is {after[name]} at the end")
    for name, room in (("rss_mb", args.grown), ("threads", 8), ("descriptors", 8)):
        if warm and after[name] > warm[name] + room:
            wrong.append(f"{name} grew from {warm[name]} to {after[name]}")
    if not counts["complete"]:
        wrong.append("no response was complete")
    print("\n".join(wrong) or "nothing was lost or mixed")
    return 1 if wrong else 0


sys.exit(asyncio.run(main()))
