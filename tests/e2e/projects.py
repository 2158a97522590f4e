"""Guests' projects outside the repository."""
import os, pathlib, shutil, subprocess

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments, **more):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=1200, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cargo(project, *arguments):
    """Cargo in the project, with nothing from the network."""
    # Cargo's settings for the host are none of the guest's.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CARGO_", "RUSTFLAGS")) or k == "CARGO_HOME"}
    env["RUSTUP_TOOLCHAIN"] = run("rustup", "show", "active-toolchain", cwd=ROOT).split()[0]
    return run("cargo", arguments[0], "--offline", *arguments[1:], cwd=project, env=env)


def build(project):
    """The project's component. Shares what the built-in guests were built from."""
    target = os.environ.get("GUESTHOUSE_GUESTS_TARGET", str(ROOT / "target" / "guests"))
    cargo(project, "build", "--release", "--target-dir", target)
    built = pathlib.Path(target, "wasm32-unknown-unknown", "release", project.name.replace("-", "_") + ".wasm")
    return pathlib.Path(shutil.copy(built, project / "out.wasm"))


def run_tests(project):
    """Runs the project's own tests, natively."""
    host = next(line[6:] for line in run("rustc", "-vV", cwd=ROOT).splitlines() if line.startswith("host: "))
    return cargo(project, "test", "--target", host, "--target-dir", str(ROOT / "target" / "guests-native"))
