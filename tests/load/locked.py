"""Another process holds the file of tenants: requests go on, changes say so within a bounded time, counters are not lost.

    locked.py [--binary target/release/guesthouse] [--seconds 20]
"""
import pathlib, sqlite3, statistics, sys, threading, time

import common

args = common.parser(__doc__)
args.add_argument("--seconds", type=float, default=20)
args = args.parse_args()
faults = common.Faults()


def usage(server):
    status, answer = server.administer("GET", "/tenants/t/usage")
    return sum(day["output_tokens"] for day in answer["data"]) if status == 200 else -1


def timed(work):
    begun = time.monotonic()
    return work(), time.monotonic() - begun


with common.folder() as place:
    place = pathlib.Path(place)
    model, state = common.tiny_model(place / "model"), place / "state/state.db"
    server = common.Server(args.binary, model, state)
    key = server.tenant("t", uploads=True)
    alone, during, changes, made = [], [], [], 0
    for _ in range(20):
        alone.append(timed(lambda: server.complete(key))[1])
        made += 4
    other = sqlite3.connect(state, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    until = time.monotonic() + args.seconds

    def administer(n):
        while time.monotonic() < until - 1:
            changes.append(timed(lambda: server.administer("POST", "/tenants", {"id": f"n{n}-{len(changes)}"}, timeout=args.seconds + 60)))

    def upload():
        changes.append(timed(lambda: server.ask("PUT", "/v1/modules/mine", common.sampler(1), key, timeout=args.seconds + 60)))

    threads = [threading.Thread(target=administer, args=(n,)) for n in range(2)] + [threading.Thread(target=upload)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        answer, took = timed(lambda: server.complete(key))
        faults.check(answer[0] == 200, f"a completion while the file is locked: {answer}")
        faults.check(server.ask("GET", "/v1/models", key=key)[0] == 200, "a key is not known while the file is locked")
        during.append(took)
        made += 4
        time.sleep(0.05)
    other.execute("ROLLBACK")
    other.close()
    for thread in threads:
        thread.join(args.seconds + 60)
    locked = [answer for answer, _ in changes if answer[0] == 503]
    for (status, body), took in changes:
        faults.check(status in (201, 200, 503), f"a change: {status} {body}")
        # Each waits for its turn and then up to 5 s.
        faults.check(took < 5.5 * len(threads) + 5, f"a change took {took:.1f} s")
    faults.check(bool(locked) or args.seconds < 6, "no change was refused")
    faults.check(all("locked by another process" in str(body) or "the server's log has the cause" in str(body) for _, body in locked), f"a refusal does not say why: {locked[:1]}")
    status, body = server.administer("POST", "/tenants", {"id": "afterwards"})
    faults.check(status == 201, f"a tenant afterwards: {status} {body}")
    status, body = server.ask("PUT", "/v1/modules/mine", common.sampler(2), key, timeout=300)
    faults.check(status == 200, f"a module afterwards: {status} {body}")
    faults.check(common.until(lambda: usage(server) == made, 20), f"{usage(server)} tokens are counted, {made} were made")
    faults.check(statistics.median(during) < 3 * statistics.median(alone) + 0.02, f"completions took {statistics.median(during):.3f} s, before {statistics.median(alone):.3f} s")
    faults.check(max(during) < 3, f"a completion took {max(during):.1f} s")
    code = server.stop()
    faults.check(code == 0, f"the server ended with {code}")
facts = {"locked s": args.seconds, "completions": len(during), "median ms before": round(1e3 * statistics.median(alone), 1), "during": round(1e3 * statistics.median(during), 1),
         "longest": round(1e3 * max(during)), "changes refused": len(locked), "of": len(changes), "longest wait s": round(max(took for _, took in changes), 1)}
sys.exit(faults.end("locked", facts))
