"""Files of models are cut, overwritten and taken away while the model serves, and while another one loads from them.

    model_cut.py [--binary target/release/guesthouse] [--loads 100]

What serves gives the answers that it gave before. A model whose file is written while it loads is refused, or loaded whole before or after.
"""
import os, pathlib, random, shutil, sys, threading, time

import common

args = common.parser(__doc__)
args.add_argument("--loads", type=int, default=100)
args = args.parse_args()
faults = common.Faults()
rng = random.Random(args.seed)


def cut_to_half(path):
    os.truncate(path, path.stat().st_size // 2)


def cut_to_nothing(path):
    os.truncate(path, 0)


def overwrite(path):
    with open(path, "r+b") as file:
        file.write(random.Random(1).randbytes(path.stat().st_size))


def remove(path):
    path.unlink()


def answer(server):
    status, body = server.complete(tokens=32, prompt=[9, 8, 7, 6])
    return body["choices"][0]["text"] if status == 200 else (status, body)


def serving(model, file):
    """Harms the file of a model that serves, in every way, under load."""
    whole = file.read_bytes()
    server = common.Server(args.binary, model, place / f"state-{file.suffix}/state.db", "--no-auth")
    expected, wrong, over = answer(server), [], threading.Event()
    faults.check(isinstance(expected, str), f"{file.name}: {expected}")

    def load():
        while not over.is_set():
            if (found := answer(server)) != expected:
                wrong.append(found)
                return

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for harm in (cut_to_half, cut_to_nothing, overwrite, remove):
        file.write_bytes(whole)
        harm(file)
        time.sleep(0.3)
        faults.check(server.alive(), f"{file.name}, {harm.__name__}: the server ended with {server.process.poll()}")
    over.set()
    for thread in threads:
        thread.join(60)
    faults.check(not wrong, f"{file.name}: expected {expected!r}, found {wrong[:1]}")
    faults.check(server.stop() == 0, f"{file.name}: the server ended with {server.process.poll()}")
    file.write_bytes(whole)


def loading(server, file):
    """Loads a model again and again while its file is cut and put back."""
    whole, over = file.read_bytes(), threading.Event()
    outcomes = {"loaded": 0, "refused": 0}
    expected = answer(server)

    def harm():
        rng = random.Random(args.seed)
        while not over.is_set():
            time.sleep(rng.random() * pause)
            os.truncate(file, rng.randrange(len(whole)))
            time.sleep(rng.random() * 0.01)
            file.write_bytes(whole)

    begun = time.monotonic()
    body = {"model": str(file), "name": "other", "kv_cache_memory_bytes": 64 << 20}
    status, text = server.administer("POST", "/models", body, timeout=300)
    pause = 2 * (time.monotonic() - begun)
    faults.check(status in (200, 201), f"{file.name} does not load: {status} {text}")
    thread = threading.Thread(target=harm)
    thread.start()
    for _ in range(args.loads):
        try:
            server.administer("DELETE", "/models/other", timeout=300)
            status, text = server.administer("POST", "/models", body, timeout=300)
        except (OSError, common.http.client.HTTPException) as error:
            faults.check(False, f"{file.name}: {error!r} while it loaded")
            break
        outcomes["loaded" if status in (200, 201) else "refused"] += 1
        faults.check(status in (200, 201, 400), f"{file.name}: {status} {text}")
    over.set()
    thread.join()
    time.sleep(0.5)
    if faults.check(server.alive(), f"{file.name}: the server ended with {server.process.poll()} while it loaded"):
        faults.check(answer(server) == expected, f"the other model's answers changed: {answer(server)}")
        server.administer("DELETE", "/models/other", timeout=300)
        status, text = server.administer("POST", "/models", body, timeout=300)
        faults.check(status in (200, 201), f"{file.name} does not load afterwards: {status} {text}")
    return outcomes


with common.folder() as place:
    place = pathlib.Path(place)
    model = common.tiny_model(place / "model")
    gguf = common.tiny_gguf(place, model)
    serving(model, model / "model.safetensors")
    serving(gguf, gguf)
    server = common.Server(args.binary, model, place / "state/state.db", "--no-auth")
    facts = {}
    # A large file gives more time to cut it: the starter model, where it was fetched before.
    starter = sorted((common.user_cache() / "models").glob("*.gguf"))
    if starter:
        gguf = pathlib.Path(shutil.copy(starter[0], place / "starter.gguf"))
    facts[gguf.name] = loading(server, gguf)
    facts["memory"] = common.process(server.pid) if server.alive() else None
    if server.alive():
        faults.check(server.stop() == 0, "the server did not end well")
sys.exit(faults.end("model cut", facts))
