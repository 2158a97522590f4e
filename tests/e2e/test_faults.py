"""The fault figures of docs/reliability.md in a shortened form: each script says what it found and fails if anything was wrong."""
import os, pathlib, subprocess, sys

import pytest

from conftest import BINARY

LOAD = pathlib.Path(__file__).parents[1] / "load"
SHORT = {
    "kill.py": ["--times", "3", "--longest", "3"],
    "disk_full.py": ["--without-records"],
    "locked.py": ["--seconds", "8"],
    "model_cut.py": ["--loads", "10"],
    "corrupt.py": ["--harms", "4"],
    "clock.py": [],
    # A machine that does other work says little of times.
    "slow.py": ["--clients", "30", "--seconds", "6", "--slower", "5"],
    "idle.py": ["--connections", "1000", "--seconds", "2", "--slower", "5"],
}


@pytest.mark.parametrize("script", SHORT)
def test_fault(script):
    command = [sys.executable, LOAD / script, "--binary", os.path.abspath(BINARY), *SHORT[script]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    if "SKIPPED" in done.stdout:
        pytest.skip(done.stdout.strip())
