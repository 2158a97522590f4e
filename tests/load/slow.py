"""Clients that send and read one byte a second, beside one that works: it notices nothing, and they leave nothing behind.

    slow.py [--binary target/release/guesthouse] [--clients 200] [--seconds 180]

A third of them send headers, a third a body, a third read a stream through the smallest buffers that the kernel gives. They are ended by the
server's timeouts: 30 s for headers, 60 s for a body, 120 s for an answer that nobody reads.
"""
import asyncio, json, pathlib, socket, sys, time

import common

args = common.parser(__doc__)
args.add_argument("--clients", type=int, default=200)
args.add_argument("--seconds", type=float, default=180)
args.add_argument("--slower", type=float, default=1.10, help="times that the normal client's median may take")
args.add_argument("--model", help="default: a tiny one")
args = args.parse_args()
faults = common.Faults()
ended = dict.fromkeys(("headers", "body", "read"), 0)
seen = dict.fromkeys(ended, 0)


async def connect(small):
    client = socket.socket()
    if small:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, address)
    return client


async def slow(kind, until):
    loop = asyncio.get_running_loop()
    body = json.dumps({"model": "m", "prompt": [5, 6, 7], "max_tokens": 480, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
    while time.monotonic() < until:
        try:
            client = await connect(kind == "read")
        except OSError:
            await asyncio.sleep(1)
            continue
        seen[kind] += 1
        try:
            if kind == "headers":
                trickle = head + b"X-Slow: " + b"a" * 100_000
            else:
                await loop.sock_sendall(client, head + b"\r\n" + (body if kind == "read" else b""))
                trickle = body + b" " * 100_000
            for byte in trickle:
                if time.monotonic() > until:
                    return
                await asyncio.sleep(1)
                if kind != "read":
                    await loop.sock_sendall(client, bytes([byte]))
                    # An answer, or the end, came: it gave us up.
                    try:
                        client.recv(1)
                        break
                    except BlockingIOError:
                        continue
                if not await asyncio.wait_for(loop.sock_recv(client, 1), 5):
                    break
            ended[kind] += 1
        except (OSError, asyncio.TimeoutError):
            ended[kind] += 1
        finally:
            client.close()


async def normal(seconds):
    """Times of single requests, one after the other."""
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        status, answer = await asyncio.to_thread(server.complete, None, 16)
        faults.check(status == 200, f"the normal client: {status} {answer}")
        times.append(time.monotonic() - begun)
    return times


def summary(times):
    times = sorted(times)
    at = lambda share: round(1e3 * times[int(share * (len(times) - 1))], 2)
    return {"requests/s": round(len(times) / sum(times), 1), "median ms": at(0.5), "p95 ms": at(0.95)}


async def main():
    await normal(2)
    before = common.process(server.pid)
    alone = await normal(max(3, args.seconds / 8))
    until = time.monotonic() + args.seconds
    kinds = list(ended)
    clients = [asyncio.create_task(slow(kinds[n % 3], until)) for n in range(args.clients)]
    await asyncio.sleep(min(3, args.seconds / 4))
    during_look = common.process(server.pid)
    beside = await normal(until - time.monotonic())
    await asyncio.gather(*clients)
    faults.check(common.until(server.idle, 150), "sequences or KV blocks are left over")
    # What idle connections were kept by the pool of the normal client is none: each request has its own.
    faults.check(common.until(lambda: common.process(server.pid)["descriptors"] <= before["descriptors"] + 2, 150), f"descriptors: {before} before, {common.process(server.pid)} after")
    after_look = common.process(server.pid)
    faults.check(after_look["threads"] <= before["threads"] + 8, f"threads: {before} before, {after_look} after")
    a, b = summary(alone), summary(beside)
    faults.check(b["median ms"] <= args.slower * a["median ms"] + 0.5, f"the normal client's median went from {a['median ms']} ms to {b['median ms']} ms")
    for kind, limit in (("headers", 30), ("body", 60)):
        if args.seconds > limit + 10:
            faults.check(ended[kind] > 0, f"no slow client of {kind} was ended within {args.seconds} s")
    return {"alone": a, "beside": b, "slow clients": args.clients, "connections": seen, "ended by the server": ended, "during": during_look, "after": after_look}


with common.folder() as place:
    place = pathlib.Path(place)
    model = args.model or common.tiny_model(place / "model")
    server = common.Server(args.binary, model, place / "state/state.db", "--disable-access-log", "--no-auth")
    address = ("127.0.0.1", int(server.base.rsplit(":", 1)[1]))
    facts = asyncio.run(main())
    faults.check(server.stop() == 0, "the server did not end well")
sys.exit(faults.end("slow clients", facts))
