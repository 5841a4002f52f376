#!/usr/bin/env python3
"""What running answers notice of somebody else's prompt: the gaps between tokens of 8 streams on one hybrid node, undisturbed
and while a prompt of 2,048 tokens is read, in turn in one run. Prints medians, 99th percentiles and their ratio."""

import argparse
import http.client
import json
import os
import pathlib
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))


def stream(url, ids, n, moments):
    """Notes when each token of an answer comes."""
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    body = {"prompt": [ids], "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            moments.append(time.perf_counter())
    connection.close()


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def gaps(streams, begin, end):
    """In ms, those that end within the time given."""
    return [(b - a) * 1e3 for s in streams for a, b in zip(s, s[1:]) if begin <= b <= end]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet", type=float, default=4, help="seconds undisturbed before each prompt")
    parser.add_argument("--rounds", type=int, default=2)
    a = parser.parse_args()
    os.environ["BATON_MODEL"] = a.model
    from cluster import Server

    server = Server("-t", a.threads, "-np", a.streams + 2, "-c", 4096)
    try:
        calm, disturbed, reading = [], [], []
        running = [[] for _ in range(a.streams)]
        threads = [threading.Thread(target=stream, args=(server.url, [1000 + i * 97 + j for j in range(16)], 4000, m), daemon=True)
                   for i, m in enumerate(running)]
        for t in threads:
            t.start()
        while not all(len(m) > 8 for m in running):
            time.sleep(0.05)
        for r in range(a.rounds):
            begin = time.perf_counter()
            time.sleep(a.quiet)
            start, first = time.perf_counter(), []
            stream(server.url, [1000 + (i * 37 + r * 1009) % 40000 for i in range(a.prompt)], 1, first)
            end = time.perf_counter()
            calm += gaps(running, begin, start)
            disturbed += gaps(running, start, end)
            reading.append(end - start)
        p99, p99_disturbed = percentile(calm, 99), percentile(disturbed, 99)
        print(f"{a.streams} streams, {a.threads} threads; gaps between tokens in ms, median and 99th percentile")
        print(f"undisturbed:                      {percentile(calm, 50):7.1f} {p99:7.1f}   ({len(calm)} gaps)")
        print(f"while {a.prompt} tokens are read:      {percentile(disturbed, 50):7.1f} {p99_disturbed:7.1f}   ({len(disturbed)} gaps, "
              f"{min(reading):.1f} to {max(reading):.1f} s to read)")
        print(f"ratio of the 99th percentiles:    {p99_disturbed / p99:7.2f}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
