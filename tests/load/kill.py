"""`kill -9` in the middle of everything: what was acknowledged is there afterwards, and the server serves again.

    kill.py [--binary target/release/guesthouse] [--times 50]

Tenants stream, bring modules, roll them back and delete them; the administrator makes tenants, rotates keys and edits policies; another
tenant's counters run. The process is killed at a random moment, the file of tenants is checked, and the next server must have every change
that was answered with success and nothing half done.
"""
import hashlib, pathlib, random, sqlite3, sys, threading, time

import common

args = common.parser(__doc__)
args.add_argument("--times", type=int, default=50)
args.add_argument("--longest", type=float, default=12, help="seconds of work before the kill, at most")
args.add_argument("--within", type=float, default=30, help="seconds in which the next server must serve")
args = args.parse_args()
faults = common.Faults()
UPLOADS = {"uploads": True, "quotas": {"compilations_per_hour": 1_000_000}, "pins": {"*": {"sampler": "mine"}}}
FLUSH = 7  # seconds: counters are written every 5, looked at every second, and a write takes its time
REFUSED = (OSError, common.http.client.HTTPException, ValueError)


class Known:
    """What must be there. While a change is under way either state may be: `maybe` holds its name until the answer."""

    def __init__(self):
        self.keys = {}        # key -> tenant, acknowledged and not replaced
        self.dead = set()     # keys that were acknowledged to be replaced
        self.weights = {}     # tenant -> weight in its policy
        self.modules = {}     # name of the uploader's module -> digest, None where there is none
        self.maybe = {}       # (kind, name) -> what a change under way would make of it
        self.asked = 0        # tokens that counters may not exceed
        self.answered = []    # (when, tokens) of this server's complete streams
        self.acknowledged = 0


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def worker(work):
    """Does its work until the server is gone."""
    def run(server, known, rng, over):
        while not over.is_set():
            try:
                work(server, known, rng)
            except REFUSED:
                if not over.is_set():
                    time.sleep(0.02)
    return run


def change(known, kind, name, value, request, good=(200, 201)):
    """Makes a change that may be cut off; its answer if it was acknowledged."""
    known.maybe[kind, name] = value
    status, answer = request()
    if status in good:
        table = getattr(known, kind)
        table[name] = value(answer) if callable(value) else value
        known.acknowledged += 1
        del known.maybe[kind, name]
        return answer
    if status < 500:
        del known.maybe[kind, name]
    faults.check(status == 409 or status == 404, f"{kind} {name}: {status} {answer}")
    return None


@worker
def uploads(server, known, rng):
    name, number = rng.choice(["mine", "spare", "third"]), rng.randrange(8)
    key, data = uploader, common.sampler(number)
    if known.modules.get(name) and rng.random() < 0.2 and name != "mine":
        change(known, "modules", name, None, lambda: server.ask("DELETE", f"/v1/modules/{name}", key=key))
    elif known.modules.get(name) and rng.random() < 0.3:
        status, history = server.ask("GET", f"/v1/modules/{name}/history", key=key)
        if status == 200 and history["data"]:
            wanted = rng.choice(history["data"])["digest"]
            change(known, "modules", name, wanted, lambda: server.ask("POST", f"/v1/modules/{name}/rollback", {"digest": wanted}, key))
    else:
        change(known, "modules", name, digest(data), lambda: server.ask("PUT", f"/v1/modules/{name}", data, key, timeout=300))


@worker
def administers(server, known, rng):
    tenants = sorted(known.weights)
    kind = rng.random()
    if len(tenants) < 3 or kind < 0.3:
        name = f"t{rng.randrange(1 << 40):x}"
        known.maybe["weights", name] = 1
        status, answer = server.administer("POST", "/tenants", {"id": name})
        if faults.check(status == 201, f"tenant {name}: {status} {answer}"):
            known.keys[answer["key"]] = name
            known.weights[name] = 1
            del known.maybe["weights", name]
            known.acknowledged += 1
    elif kind < 0.6:
        name = rng.choice(tenants)
        old = {key for key, of in known.keys.items() if of == name}
        for key in old:
            known.maybe["keys", key] = None
        status, answer = server.administer("POST", f"/tenants/{name}/keys", {})
        if faults.check(status == 201, f"rotate {name}: {status} {answer}"):
            known.keys = {key: of for key, of in known.keys.items() if of != name} | {answer["key"]: name}
            known.dead |= old
            for key in old:
                del known.maybe["keys", key]
            known.acknowledged += 1
    else:
        name, weight = rng.choice(tenants), rng.randrange(1, 100)
        change(known, "weights", name, weight, lambda: server.administer("PATCH", f"/tenants/{name}", {"policy": {"weight": weight}}))
    time.sleep(rng.random() * 0.02)


@worker
def streams(server, known, rng):
    tokens = rng.randrange(1, 200)
    known.asked += tokens
    status, answer = server.complete(rng.choice([bystander, uploader]), tokens, prompt=[rng.randrange(3, 190) for _ in range(rng.randrange(1, 60))], stream=True)
    faults.check(status == 200, f"stream: {status} {answer}")
    faults.check(status != 200 or "[DONE]" in answer and '"error"' not in answer, f"a stream ended: {answer[-300:]}")
    known.answered.append((time.monotonic(), tokens))


def verify(server, known):
    """Everything that was acknowledged is there; what was cut off is as before or as it would have been."""
    for key, name in list(known.keys.items()):
        status, _ = server.ask("GET", "/v1/models", key=key)
        if status == 401 and ("keys", key) in known.maybe:
            del known.keys[key]  # its rotation was written, and the new key never seen
            known.dead.add(key)
        else:
            faults.check(status == 200, f"a key of {name} that was acknowledged: {status}")
    for key in known.dead:
        status, _ = server.ask("GET", "/v1/models", key=key)
        faults.check(status == 401, f"a key that was replaced: {status}")
    found = {t["id"]: t for t in server.administer("GET", "/tenants")[1]["data"]}
    for name, weight in list(known.weights.items()):
        there = found.get(name, {}).get("policy", {}).get("weight")
        allowed = {weight, known.maybe.get(("weights", name), weight)}
        if faults.check(there in allowed, f"weight of {name} is {there}, expected one of {allowed}"):
            known.weights[name] = there
    for kind, name in known.maybe:
        if kind == "weights" and name in found:
            known.weights.setdefault(name, found[name]["policy"].get("weight", 1))
    extra = set(found) - set(known.weights) - {"uploader", "bystander"}
    faults.check(not extra, f"tenants that nobody asked for: {extra}")
    status, live = server.ask("GET", "/v1/modules", key=uploader)
    faults.check(status == 200, f"modules: {status} {live}")
    live = {module["name"]: module["digest"] for module in live["data"]}
    for name in ("mine", "spare", "third"):
        before = known.modules.get(name)
        allowed = {before, known.maybe.get(("modules", name), before)}
        faults.check(live.get(name) in allowed, f"module {name} is {live.get(name)}, expected one of {allowed}")
        known.modules[name] = live.get(name)
    known.maybe.clear()
    for key in (uploader, bystander):
        known.asked += 4
        status, answer = server.complete(key)
        faults.check(status == 200, f"a completion after the restart: {status} {answer}")
    rejected = [line for line in server.log if "not taken" in line or "panicked" in line]
    faults.check(not rejected, f"the server says: {rejected[:2]}")


def counted(server):
    """Tokens of the bystander and the uploader that were ever counted."""
    total = 0
    for name in ("uploader", "bystander"):
        status, usage = server.administer("GET", f"/tenants/{name}/usage")
        faults.check(status == 200, f"usage: {status} {usage}")
        total += sum(day["output_tokens"] for day in usage["data"])
    return total


def leftovers(place):
    """Half-written files, of which a server that just started has none."""
    return [str(path) for path in place.rglob("*") if path.is_file() and (path.name.startswith(".") or ".new" in path.name)]


rng = random.Random(args.seed)
with common.folder() as place:
    place = pathlib.Path(place)
    model, state = common.tiny_model(place / "model"), place / "state/state.db"
    known, before, slowest, least = Known(), 0, 0.0, None
    environment = {"GUESTHOUSE_CACHE": str(common.warm_cache(place))}
    server = common.Server(args.binary, model, state, environment=environment)
    uploader, bystander = server.tenant("uploader", **UPLOADS), server.tenant("bystander")
    status, answer = server.ask("PUT", "/v1/modules/mine", common.sampler(0), uploader, timeout=300)
    faults.check(status == 200, f"the first module: {status} {answer}")
    known.modules["mine"] = answer["digest"]
    files = []
    for _ in range(args.times):
        over = threading.Event()
        work = [uploads, administers, streams, streams, streams, streams]
        threads = [threading.Thread(target=w, args=(server, known, random.Random(rng.random()), over)) for w in work]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.05, args.longest))
        killed = time.monotonic()
        server.process.kill()
        over.set()
        server.kill()
        for thread in threads:
            thread.join(120)
        with sqlite3.connect(state) as database:
            found = database.execute("PRAGMA integrity_check").fetchone()[0]
            faults.check(found == "ok", f"integrity_check: {found}")
        database.close()
        server = common.Server(args.binary, model, state, environment=environment)
        slowest = max(slowest, server.started_in)
        faults.check(server.started_in < args.within, f"served after {server.started_in:.1f} s, expected within {args.within}")
        verify(server, known)
        now = counted(server)
        written = sum(tokens for at, tokens in known.answered if at < killed - FLUSH)
        faults.check(before + written <= now <= known.asked, f"{now} tokens are counted, {before} before and {written} that should be written since; {known.asked} were asked for")
        before, known.answered = now, []
        leftover = leftovers(place)
        faults.check(not leftover, f"files are left over: {leftover}")
        files.append(sum(1 for path in place.rglob("*") if path.is_file()))
    code = server.stop()
    faults.check(code == 0, f"the last server ended with {code}")
    facts = {"seed": args.seed, "kills": args.times, "changes acknowledged": known.acknowledged, "tenants": len(known.weights), "tokens counted": before,
             "slowest start s": round(slowest, 2), "files after each": [files[0], max(files), files[-1]]}
sys.exit(faults.end("kill -9", facts))
