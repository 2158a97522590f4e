"""Ten thousand connections that ask for nothing, beside a client that works: it notices nothing.

    idle.py [--binary target/release/guesthouse] [--connections 10000] [--cap 16384]

Half of them never sent a byte, half have had an answer and are kept alive. Then more are opened than the server takes at once
(--max-connections): the newest client is served meanwhile, as those that are idle for longest give way.
"""
import pathlib, resource, socket, sys, time

import common

args = common.parser(__doc__)
args.add_argument("--connections", type=int, default=10_000)
args.add_argument("--cap", type=int, default=16_384, help="the server's --max-connections in the first part; the second part takes half of --connections")
args.add_argument("--seconds", type=float, default=10, help="of the normal client's work in each part")
args.add_argument("--slower", type=float, default=1.10, help="times that the normal client's median may take")
args = args.parse_args()
faults = common.Faults()
ASK = b"GET /health HTTP/1.1\r\nHost: idle\r\n\r\n"


def idle(number):
    """A connection from one of many addresses of this machine, so that ports do not run out."""
    client = socket.socket()
    client.bind((f"127.0.0.{2 + number % 50}", 0))
    client.settimeout(20)
    client.connect(address)
    return client


def open_all(count):
    clients = []
    for number in range(count):
        client = idle(number)
        if number % 2:
            client.sendall(ASK)
        clients.append(client)
    for client in clients[1::2]:
        try:
            faults.check(client.recv(1000).startswith(b"HTTP/1.1 200"), "a connection had no answer")
        except OSError as error:
            faults.check(False, f"a connection had no answer: {error}")
    return clients


def normal(seconds):
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        status, answer = server.complete(tokens=16, timeout=60)
        faults.check(status == 200, f"the normal client: {status} {answer}")
        times.append(time.monotonic() - begun)
    times.sort()
    return {"median ms": round(1e3 * times[len(times) // 2], 2), "p95 ms": round(1e3 * times[int(0.95 * len(times))], 2), "requests/s": round(len(times) / sum(times), 1)}


def start(cap):
    server = common.Server(args.binary, model, place / f"state{cap}/state.db", "--disable-access-log", "--no-auth", "--max-connections", cap)
    return server, ("127.0.0.1", int(server.base.rsplit(":", 1)[1]))


def open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = args.connections + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        print(f"idle: SKIPPED, {wanted} open files are needed and {hard} allowed; raise the limit, or take --connections {hard - 500}")
        sys.exit(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


open_files()
with common.folder() as place:
    place = pathlib.Path(place)
    model = common.tiny_model(place / "model")
    server, address = start(args.cap)
    normal(2)
    before = common.process(server.pid)
    alone = normal(args.seconds)
    begun = time.monotonic()
    clients = open_all(args.connections)
    opened = time.monotonic() - begun
    look = common.process(server.pid)
    faults.check(look["descriptors"] >= args.connections, f"{look['descriptors']} descriptors with {args.connections} connections")
    beside = normal(min(args.seconds, max(2, 25 - opened)))
    spent = common.processor_seconds(server.pid)
    time.sleep(2)
    spinning = (common.processor_seconds(server.pid) - spent) / 2
    faults.check(spinning < 0.2, f"the server uses {spinning:.2f} of a core while all are idle")
    faults.check(beside["median ms"] <= args.slower * alone["median ms"] + 0.5, f"the normal client's median went from {alone['median ms']} ms to {beside['median ms']} ms")
    for client in clients:
        client.close()
    faults.check(common.until(lambda: common.process(server.pid)["descriptors"] <= before["descriptors"] + 2, 60), f"descriptors: {before} before, {common.process(server.pid)} after")
    faults.check(server.stop() == 0, "the server did not end well")
    facts = {"connections": args.connections, "opened in s": round(opened, 1), "KiB each": round(1024 * (look["rss_mb"] - before["rss_mb"]) / args.connections, 1), "alone": alone, "beside": beside, "of a core while idle": round(spinning, 3)}

    # More than the server takes.
    cap = args.connections // 2
    server, address = start(cap)
    normal(1)
    begun = time.monotonic()
    clients = [idle(n) for n in range(args.connections)]
    crowded = normal(min(args.seconds, 10))
    look = common.process(server.pid)
    faults.check(look["descriptors"] <= cap + 64, f"{look['descriptors']} descriptors with --max-connections {cap}")
    faults.check(crowded["p95 ms"] < 1000, f"at the cap, the normal client's requests take {crowded}")
    for client in clients:
        client.close()
    faults.check(common.until(lambda: common.process(server.pid)["descriptors"] < 64, 60), "connections are left")
    facts["at the cap"] = crowded
    faults.check(server.stop() == 0, "the server did not end well")
sys.exit(faults.end("idle", facts))
