"""Files of modules and of compiled code are changed, cut, replaced and taken away underneath: no other code runs, and nobody else notices.

    corrupt.py [--binary target/release/guesthouse] [--harms 8]

Each harm is done to one of the uploader's modules, and to the compiled code of another one; then the server is started again. A module's file that
is not what it was is refused with a line in the log; compiled code that is not is made again.
"""
import hashlib, os, pathlib, shutil, sys

import common

args = common.parser(__doc__)
args.add_argument("--harms", type=int, default=8, help="as many of the eight")
args = args.parse_args()
faults = common.Faults()


def flip(path, others):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path, others):
    os.truncate(path, path.stat().st_size // 2)


def link(path, others):
    path.unlink()
    path.symlink_to("/etc/passwd")


def endless(path, others):
    path.unlink()
    path.symlink_to("/dev/zero")


def remove(path, others):
    path.unlink()


def become_folder(path, others):
    path.unlink()
    path.mkdir()


def become_pipe(path, others):
    path.unlink()
    os.mkfifo(path)


def become_another(path, others):
    """A valid file, of another module."""
    shutil.copy(others, path)


HARMS = [flip, become_pipe, become_another, link, remove, cut, endless, become_folder][:args.harms]


def name(harm, what):
    return f"{what}-{harm.__name__}".replace("_", "-")


def works(server, key, sampler):
    return server.complete(key, sampler=sampler)[0] == 200


with common.folder() as place:
    place = pathlib.Path(place)
    model, state = common.tiny_model(place / "model"), place / "state/state.db"
    cache = common.warm_cache(place)
    environment = {"GUESTHOUSE_CACHE": str(cache)}
    server = common.Server(args.binary, model, state, environment=environment)
    policy = {"uploads": True, "quotas": {"compilations_per_hour": 1000}}
    uploader, other = server.tenant("uploader", **policy), server.tenant("other", **policy)
    digests = {}
    for number, what in enumerate([name(harm, kind) for harm in HARMS for kind in ("module", "code")] + ["whole"]):
        status, answer = server.ask("PUT", f"/v1/modules/{what}", common.sampler(number), uploader, timeout=300)
        faults.check(status == 200, f"{what}: {status} {answer}")
        digests[what] = answer["digest"].removeprefix("sha256:")
    # Two versions, so that there is one to go back to.
    for number in (100, 101):
        status, answer = server.ask("PUT", "/v1/modules/own", common.sampler(number), other, timeout=300)
        faults.check(status == 200, f"own: {status} {answer}")
    earlier = common.sampler(100)
    stored = lambda what: state.parent / "modules" / f"{digests[what]}.wasm"
    compiled = lambda what: next((cache / "modules").glob(f"{digests[what]}-*.cwasm"))
    built_in = next(path.with_suffix(".cwasm") for path in (cache / "modules").glob("*.sha256"))
    for harm in HARMS:
        harm(stored(name(harm, "module")), stored("whole"))
        # The samplers differ in what is not compiled: their code is the same.
        harm(compiled(name(harm, "code")), built_in)
    # What runs goes on from memory.
    for harm in HARMS:
        for kind in ("module", "code"):
            faults.check(works(server, uploader, name(harm, kind)), f"{name(harm, kind)} ended under a server that ran")
    # A version to go back to that was changed is refused.
    changed = state.parent / "modules" / f"{hashlib.sha256(earlier).hexdigest()}.wasm"
    flip(changed, None)
    rollback = {"digest": "sha256:" + hashlib.sha256(earlier).hexdigest()}
    status, answer = server.ask("POST", "/v1/modules/own/rollback", rollback, other)
    faults.check(status == 503 and server.said("not the module of its name"), f"a changed version serves: {status} {answer}")
    faults.check(works(server, other, "own"), "the version before does not serve")
    status, answer = server.ask("PUT", "/v1/modules/own", earlier, other, timeout=300)
    faults.check(status == 200, f"brought again: {status} {answer}")
    server.kill()

    server = common.Server(args.binary, model, state, environment=environment)
    listed = {module["name"]: module for module in server.ask("GET", "/v1/modules", key=uploader)[1]["data"]}
    live = {what for what, module in listed.items() if not module.get("unusable")}
    rejected = str(server.administer("GET", "/modules")[1].get("rejected"))
    log = "".join(server.log)
    for harm in HARMS:
        what = name(harm, "module")
        faults.check(what not in live and not works(server, uploader, what), f"{what} serves")
        faults.check(what in listed, f"{what} is not listed with a reason")
        faults.check(what in rejected, f"{what} is not among the rejected")
        faults.check(any(digests[what] in line and "not taken" in line for line in server.log), f"{what}: no line of the log names it")
        what = name(harm, "code")
        faults.check(what in live and works(server, uploader, what), f"{what} does not serve")
        faults.check(harm is remove or any(digests[what] in line and "recompiling" in line for line in server.log), f"{what}: no line of the log names it")
    faults.check(works(server, uploader, "whole"), "a module that nobody touched does not serve")
    faults.check(works(server, other, "own"), "another tenant's module does not serve")
    faults.check("panicked" not in log, f"the server says: {server.said('panicked')}")
    # Brought again, they serve, and after another start too.
    for number, what in enumerate(digests):
        if what.startswith("module"):
            if stored(what).is_dir():
                stored(what).rmdir()
            status, answer = server.ask("PUT", f"/v1/modules/{what}", common.sampler(number), uploader, timeout=300)
            faults.check(status == 200, f"{what} brought again: {status} {answer}")
    faults.check(server.stop() == 0, "the server did not end well")
    server = common.Server(args.binary, model, state, environment=environment)
    for what in digests:
        faults.check(works(server, uploader, what), f"{what} does not serve at last")
    started = server.started_in
    faults.check(server.stop() == 0, "the server did not end well")
sys.exit(faults.end("corrupt", {"harms": len(HARMS), "modules": len(digests), "last start s": round(started, 2)}))
