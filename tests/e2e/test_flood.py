"""The short form of tests/load/flood.py: a flood fails nobody's requests, and a bystander's are answered before it is over.

What a bystander feels in times and milliseconds is measured on a quiet machine (docs/reliability.md)."""
import json, pathlib, re, subprocess, sys

from conftest import BINARY, FLAGS, MODEL

STREAMS = 48


def test_a_bystander_is_answered_before_the_flood_is_over():
    script = pathlib.Path(__file__).parents[1] / "load/flood.py"
    command = [sys.executable, str(script), "--start", BINARY, "--model", MODEL, f"--flags={' '.join(FLAGS)}", "--streams", str(STREAMS), "--rounds", "3",
               "--prompt", "32", "--answer", "8", "--first-token", "1000", "--between-tokens", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    flooder = json.loads(re.search(r"flooder (\{.*?\})", done.stdout).group(1))
    assert flooder["failed"] == 0 and flooder["complete"] < STREAMS, done.stdout
