"""Seconds from process start to the first token of a streamed answer, and memory in use: start.py BINARY MODEL"""
import http.client, json, os, re, subprocess, sys, time

binary, model = sys.argv[1:3]
for _ in range(3):
    started = time.time()
    process = subprocess.Popen([binary, "serve", model, "--port", "0", *sys.argv[3:]], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"serving on http://([\d.]+):(\d+)", line)
        if found:
            break
    ready = time.time()
    connection = http.client.HTTPConnection(found.group(1), int(found.group(2)))
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "The capital of France is", "max_tokens": 1, "stream": True}), {"content-type": "application/json"})
    connection.getresponse().readline()
    first = time.time()
    status = open(f"/proc/{process.pid}/status").read()
    rss = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
    process.terminate()
    process.wait()
    print(f"ready {ready - started:.3f} s, first token {first - started:.3f} s, resident {rss:.0f} MiB")
