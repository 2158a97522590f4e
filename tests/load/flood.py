"""What a tenant feels of another's flood: its requests, one after the other, alone and then beside 200 streams of the other tenant.

    flood.py --start target/release/guesthouse [--model smollm2]
    flood.py --base http://127.0.0.1:8000 --bystander KEY --flooder KEY

Prints medians over requests of the time to the first token and of the mean time between tokens; exits with 1 where one is above its
limit, or a request failed. The flooder is a process of the lowest priority that reads little and seldom, so that it takes its part of the
server and not of the processor. Prompts are random tokens: no cache knows them.
"""
import argparse, json, os, pathlib, random, re, select, socket, statistics, subprocess, sys, tempfile, time
from urllib.parse import urlsplit

FIRST = 1000  # ids of ordinary tokens in every vocabulary that is used here
REST = 0.25  # seconds between two looks of the flooder at its streams


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base")
    parser.add_argument("--bystander", help="its key")
    parser.add_argument("--flooder", help="its key")
    parser.add_argument("--start", help="binary to start on a free port, with two tenants")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--flags", default="", help="more flags for the server that is started")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a bystander's prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens of its answer")
    parser.add_argument("--flood-prompt", type=int, default=200)
    parser.add_argument("--flood-answer", type=int, default=600)
    parser.add_argument("--first-token", type=float, default=2.0, help="limit of the median beside the flood, in times what it is alone")
    parser.add_argument("--between-tokens", type=float, default=1.3)
    parser.add_argument("--verbose", action="store_true", help="a line per request")
    return parser.parse_args()


def message(base, key, prompt, answer):
    body = json.dumps({"prompt": [FIRST + random.randrange(20000) for _ in range(prompt)], "stream": True, "max_tokens": answer,
                       "ignore_eos": True, "temperature": 0, "logprobs": 0, "return_tokens_as_token_ids": True}).encode()
    return (f"POST /v1/completions HTTP/1.1\r\nHost: {urlsplit(base).netloc}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body


def connect(base):
    return socket.create_connection((urlsplit(base).hostname, urlsplit(base).port), 600)


def ask(base, key, prompt, answer):
    """Times of the first token and of the others, in seconds since the request."""
    text, told = message(base, key, prompt, answer), []
    with connect(base) as connection:
        begun = time.monotonic()
        connection.sendall(text)
        lines = connection.makefile("rb")
        status = lines.readline()
        for line in lines:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    sys.exit(f"a bystander's request failed: {line[:300]}")
                now = time.monotonic() - begun
                told += [now for choice in event["choices"] for _ in (choice.get("logprobs") or {}).get("tokens", [])]
            elif line.startswith(b"data: [DONE]"):
                break
        if b" 200 " not in status or len(told) != answer:
            sys.exit(f"a bystander's request failed: {status!r}, {len(told)} tokens of {answer}")
    return told


def feel(args, name):
    rounds = []
    for _ in range(args.rounds):
        told = ask(args.base, args.bystander, args.prompt, args.answer)
        rounds.append(told)
        if args.verbose:
            print(f"{name:7} {told[0] * 1000:.0f} ms, then {(told[-1] - told[0]) * 1000 / (len(told) - 1):.1f} ms per token", flush=True)
    first = statistics.median(told[0] for told in rounds)
    between = statistics.median((told[-1] - told[0]) / (len(told) - 1) for told in rounds)
    gaps = sorted(later - told for round in rounds for told, later in zip(round, round[1:]))
    print(f"{name:7} first token {first * 1000:7.1f} ms, between tokens {between * 1000:6.1f} ms (gaps: median {gaps[len(gaps) // 2] * 1000:.1f}, "
          f"99 % {gaps[len(gaps) * 99 // 100] * 1000:.1f})", flush=True)
    return first, between


def flood(args):
    """Keeps the streams up until standard input ends, then says what became of them."""
    counts = {"begun": 0, "complete": 0, "failed": 0, "bytes": 0}
    failures, streams = [], {}

    def begin():
        connection = connect(args.base)
        connection.sendall(message(args.base, args.flooder, args.flood_prompt, args.flood_answer))
        connection.setblocking(False)
        streams[connection] = b""
        counts["begun"] += 1

    for _ in range(args.streams):
        begin()
    print("up", flush=True)
    while True:
        for connection in list(streams):
            try:
                while piece := connection.recv(1 << 16):
                    counts["bytes"] += len(piece)
                    # The first line, and the end.
                    streams[connection] = streams[connection][:64] + piece[-300:]
                text = streams.pop(connection)
                connection.close()
                is_whole = text.startswith(b"HTTP/1.1 200") and b"[DONE]" in text and b'"error"' not in text
                counts["complete" if is_whole else "failed"] += 1
                if not is_whole:
                    failures.append(repr(text[:200]))
                begin()
            except BlockingIOError:
                pass
        if select.select([sys.stdin], [], [], REST)[0]:
            break
    print(json.dumps(counts), *failures[:3], flush=True)


def start(args, folder):
    def key(name):
        command = [args.start, "tenant", "add", name, "--state", f"{folder}/state.db"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    args.bystander, args.flooder = key("bystander"), key("flooder")
    log = pathlib.Path(folder, "log")
    command = [args.start, "serve", args.model, "--port", "0", "--state", f"{folder}/state.db", *args.flags.split()]
    server = subprocess.Popen(command, stderr=log.open("wb"))
    while not (found := re.search(r"serving on (http://[^\s\x1b\"]+)", log.read_text(errors="replace"))):
        if server.poll() is not None:
            sys.exit("the server did not start:\n" + log.read_text(errors="replace")[-2000:])
        time.sleep(0.2)
    args.base = found.group(1)
    return server


def main():
    args = arguments()
    if key := os.environ.get("FLOODER"):
        args.flooder = key
        os.nice(19)
        return flood(args)
    with tempfile.TemporaryDirectory() as folder:
        server = start(args, folder) if args.start else None
        try:
            return measure(args)
        finally:
            if server:
                server.terminate()
                server.wait(60)


def measure(args):
    ask(args.base, args.bystander, args.prompt, args.answer)
    alone = feel(args, "alone")
    command = [sys.executable, __file__, "--base", args.base, "--streams", str(args.streams),
               "--flood-prompt", str(args.flood_prompt), "--flood-answer", str(args.flood_answer)]
    flooder = subprocess.Popen(command, env={**os.environ, "FLOODER": args.flooder}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert flooder.stdout.readline() == "up\n", "the flood did not begin"
        # As in a day's work: the tenant is there when the flood comes, and what it feels at first is not what it feels all along.
        ask(args.base, args.bystander, args.prompt, args.answer)
        beside = feel(args, "beside")
        seen = flooder.communicate("\n", timeout=60)[0].strip()
    finally:
        flooder.kill()
    ratios = [after / before for before, after in zip(alone, beside)]
    counts = json.loads(seen[:seen.index("}") + 1])
    print(f"times   first token {ratios[0]:.2f} (limit {args.first_token}), between tokens {ratios[1]:.2f} (limit {args.between_tokens})\nflooder {seen}")
    wrong = counts["failed"] or not counts["bytes"]
    return 1 if wrong or ratios[0] > args.first_token or ratios[1] > args.between_tokens else 0


if __name__ == "__main__":
    sys.exit(main())
