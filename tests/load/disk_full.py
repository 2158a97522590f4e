"""A full disk under the file of tenants, modules, compiled code and records: changes fail with a clear error, answers go on.

    disk_full.py [--binary target/release/guesthouse] [--how auto|tmpfs|limit]

`tmpfs` needs the right to mount: all four are on a file system that is filled up. `limit` needs none: no file of the server may grow
beyond 256 KiB (RLIMIT_FSIZE, which the kernel answers with SIGXFSZ and EFBIG). `auto` is both, as far as allowed. Guests of a server that records are
compiled apart, which takes a minute the first time; --without-records leaves that part out.
"""
import contextlib, pathlib, resource, subprocess, sys

import common

args = common.parser(__doc__)
args.add_argument("--how", choices=("tmpfs", "limit", "auto"), default="auto")
args.add_argument("--without-records", action="store_true")
args = args.parse_args()
faults = common.Faults()
LIMIT = 256 << 10


def mount(folder, room):
    """Why not, if not. `room` is what it holds beyond the cache, MB."""
    size = room + sum(path.stat().st_size for path in (common.user_cache() / "modules").glob("*")) // (1 << 20)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "guesthouse-faults", folder], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def fill(folder):
    """All that is left, to the last byte."""
    with open(folder / "ballast", "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def refused(server, what, answer, *words):
    """Clear: a failure of the server's, and the words in the answer or the log."""
    status, body = answer
    faults.check(status in (500, 503), f"{what}: {status} {body}")
    for word in words:
        faults.check(common.until(lambda: word in str(body) or server.said(word), 2), f"{what}: nothing says '{word}': {body}, {server.log[-3:]}")


def works(what, answer, good=(200, 201)):
    faults.check(answer[0] in good, f"{what}: {answer}")
    return answer


def usage(server):
    answer = works("usage", server.administer("GET", "/tenants/uploader/usage"))
    return sum(day["output_tokens"] for day in answer[1].get("data", []))


def serves_on(server, key, expected):
    """What serves goes on serving, with the module from before."""
    for _ in range(20):
        answer = server.complete(key, sampler="mine")
        if not faults.check(answer[0] == 200 and answer[1]["choices"] == expected, f"a completion on the full disk: {answer}"):
            break
    faults.check(server.alive(), f"the server ended with {server.process.returncode}: {server.log[-3:]}")


def first(server):
    """The uploader's key, and what it gets."""
    key = server.tenant("uploader", uploads=True, quotas={"compilations_per_hour": 1000})
    works("a module", server.ask("PUT", "/v1/modules/mine", common.sampler(1), key, timeout=300))
    return key, works("a completion", server.complete(key, sampler="mine"))[1]["choices"]


def afterwards(server, key, disk):
    works("a module afterwards", server.ask("PUT", "/v1/modules/mine", common.sampler(3), key, timeout=300))
    works("a tenant afterwards", server.administer("POST", "/tenants", {"id": "later"}))
    works("a completion afterwards", server.complete(key))
    faults.check(common.until(lambda: usage(server) >= 4 * 22, 15), f"{usage(server)} tokens were counted, expected {4 * 22}")
    hidden = [str(path) for folder in ("state", "cache") for path in (disk / folder).rglob(".*") if path.is_file()]
    faults.check(not hidden, f"half-written files are left: {hidden}")
    faults.check(not server.said("panicked"), f"the server says: {server.said('panicked')}")


def full(disk):
    common.warm_cache(disk)
    with server_of(disk) as server:
        key, expected = first(server)
        fill(disk)
        refused(server, "a module", server.ask("PUT", "/v1/modules/mine", common.sampler(2), key, timeout=300), "cannot be written", "No space left")
        refused(server, "a tenant", server.administer("POST", "/tenants", {"id": "late"}), "no room to write", "state.db")
        serves_on(server, key, expected)
        common.until(lambda: server.said("counters of tenants cannot be written"), 10)
        cli = subprocess.run([args.binary, "tenant", "rotate", "uploader", "--state", disk / "state/state.db"], capture_output=True, text=True)
        faults.check(cli.returncode == 1 and "state.db" in cli.stderr, f"the command line: {cli.returncode} {cli.stderr}")
        (disk / "ballast").unlink()
        afterwards(server, key, disk)


def limited(disk):
    common.warm_cache(disk)
    with server_of(disk, limits=[(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))]) as server:
        key, expected = first(server)
        refused(server, "a module", server.ask("PUT", "/v1/modules/mine", common.sampler(2, LIMIT), key, timeout=300), "File too large")
        for n in range(4000):
            answer = server.administer("POST", "/tenants", {"id": f"t{n}", "policy": {"defaults": {"user": "x" * 8000}}})
            if answer[0] != 201:
                break
        refused(server, "a tenant", answer, "state.db")
        serves_on(server, key, expected)
    # The limit is a process's own: the next one has none.
    with server_of(disk) as server:
        for _ in range(21):
            works("a completion", server.complete(key))
        afterwards(server, key, disk)


def recorded(disk):
    """A server that records every request, on compiled code of the user's cache."""
    records = disk / "records"
    with server_of(disk, "--no-auth", "--record", records, environment={}) as server:
        works("a completion", server.complete())
        before = len(list(records.iterdir()))
        faults.check(before == 1, f"{before} requests were recorded")
        fill(disk)
        for _ in range(5):
            works("a completion", server.complete())
        faults.check(common.until(lambda: server.said("not recorded")), "nothing says that requests are not recorded")
        faults.check(len(list(records.iterdir())) == before, "files of records that hold nothing are left")
        (disk / "ballast").unlink()
        works("a completion", server.complete())
        faults.check(common.until(lambda: len(list(records.iterdir())) > before, 5), "nothing is recorded afterwards")


@contextlib.contextmanager
def server_of(disk, *flags, environment=None, limits=()):
    if environment is None:
        environment = {"GUESTHOUSE_CACHE": str(disk / "cache")}
    server = common.Server(args.binary, model, disk / "state/state.db", *flags, environment=environment, limits=limits)
    try:
        yield server
        code = server.stop()
        faults.check(code == 0, f"the server ended with {code}")
    finally:
        if server.alive():
            server.kill()


@contextlib.contextmanager
def mounted(room):
    """A folder of its own file system, or None where that is not allowed."""
    disk = place / f"disk{room}"
    disk.mkdir(mode=0o700)
    if why := mount(disk, room):
        facts["not mounted"] = why
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


facts = {}
with common.folder() as place:
    place = pathlib.Path(place)
    model = common.tiny_model(place / "model")
    if args.how != "limit":
        with mounted(24) as disk:
            if disk:
                full(disk)
                facts["full"] = "tmpfs"
        if not args.without_records:
            with mounted(25) as disk:
                if disk:
                    recorded(disk)
                    facts["records"] = "tmpfs"
    if args.how != "tmpfs":
        limited(place / "limited")
        facts["limit"] = LIMIT
sys.exit(faults.end("disk full", facts))
