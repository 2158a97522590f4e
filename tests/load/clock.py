"""The machine's clock jumps while a server works: limits, timeouts and streams do not notice; days of counters follow the clock.

    clock.py [--binary target/release/guesthouse]

A preloaded library adds to CLOCK_REALTIME what a file says; it needs a C compiler (cc).
"""
import pathlib, shutil, sqlite3, subprocess, sys, threading, time

import common

args = common.parser(__doc__).parse_args()
faults = common.Faults()
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long long *jump;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_JUMP");
    int file = path ? open(path, O_RDONLY) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) jump = at;
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && jump && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *jump;
    return failed;
}
"""
DAY = 86_400
JUMPS = [("an hour on", 3_600), ("an hour back", -3_600), ("a day on", DAY), ("ten years on", 3_653 * DAY), ("before 1970", -int(time.time()) - 5), ("none", 0)]

cc = shutil.which("cc") or shutil.which("gcc")
if cc is None:
    print("clock: SKIPPED, there is no C compiler")
    sys.exit(0)
with common.folder() as place:
    place = pathlib.Path(place)
    (place / "shim.c").write_text(SHIM)
    subprocess.run([cc, "-shared", "-fPIC", "-O1", "-o", place / "shim.so", place / "shim.c"], check=True)
    jump = place / "jump"
    jump.write_bytes(bytes(8))

    def set_clock(seconds):
        with open(jump, "r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    model = common.tiny_model(place / "model")
    server = common.Server(args.binary, model, place / "state/state.db", environment={"LD_PRELOAD": str(place / "shim.so"), "CLOCK_JUMP": str(jump)})
    free, limited = server.tenant("free"), server.tenant("limited", quotas={"requests_per_minute": 6})
    for _ in range(6):
        faults.check(server.complete(limited)[0] == 200, "a request within the limit was refused")
    faults.check(server.complete(limited)[0] == 429, "a request over the limit was let in")
    emptied = time.monotonic()
    expected = server.complete(free, 400)[1]["choices"][0]["text"]
    made = 400
    for what, seconds in JUMPS:
        found = []
        stream = threading.Thread(target=lambda: found.append(server.complete(free, 400)))
        stream.start()
        set_clock(seconds)
        made += 400
        created = server.complete(free)[1]["created"]
        made += 4
        told = max(0, int(time.time()) + seconds)
        faults.check(abs(created - told) < 60, f"{what}: the server's clock says {created}, expected {told}: the library does not work")
        # A token comes back every 10 s of real time, whatever the clock says.
        if time.monotonic() - emptied < 9:
            status, answer = server.complete(limited)
            faults.check(status == 429, f"{what}: a request over the limit was let in: {status} {answer}")
        stream.join(120)
        faults.check(found and found[0][0] == 200 and found[0][1]["choices"][0]["text"] == expected, f"{what}: a request under way: {found}")
        status, health = server.ask("GET", "/health")
        faults.check(status == 200, f"{what}: health: {status} {health}")
        status, answer = server.administer("PATCH", "/tenants/free", {"policy": {"weight": 2}})
        faults.check(status == 200, f"{what}: a change: {status} {answer}")
    time.sleep(max(0, emptied + 10.5 - time.monotonic()))
    status, answer = server.complete(limited)
    faults.check(status == 200, f"a request after the limit's time was refused: {status} {answer}")

    def counted():
        """In the file, as the API shows the last 31 days alone."""
        with sqlite3.connect(f"file:{place}/state/state.db?mode=ro", uri=True) as state:
            rows = state.execute("SELECT day, output_tokens FROM usage JOIN tenants ON number = tenant WHERE id = 'free'").fetchall()
        return sum(tokens for _, tokens in rows), len({day for day, _ in rows})

    faults.check(common.until(lambda: counted()[0] == made, 15), f"{counted()[0]} tokens are counted, {made} were made")
    days = counted()[1]
    faults.check(not server.said("panicked"), f"the server says: {server.said('panicked')}")
    faults.check(server.stop() == 0, "the server did not end well")
sys.exit(faults.end("clock", {"jumps": [what for what, _ in JUMPS], "days counted": days}))
