#!/usr/bin/env python3
"""What a hand-off costs: bytes on the wire against the raw KV of the pages sent, and the gap from first to second token
against a single node's, in turn in one run. Medians."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))


def gaps(url, ids, n):
    """Moments between the first tokens of one streamed answer, in ms."""
    body = {"prompt": [ids], "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    start, moments = time.perf_counter(), []
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):
                moments.append(time.perf_counter())
    return (moments[0] - start) * 1e3, [(b - a) * 1e3 for a, b in zip(moments, moments[1:])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tls", action="store_true", help="the cluster's links are TLS")
    a = parser.parse_args()
    os.environ["BATON_MODEL"] = a.model
    from cluster import BIN, Cluster, Server

    secure = ()
    if a.tls:
        folder = tempfile.mkdtemp()
        subprocess.run([BIN, "cluster", "init", folder + "/certs"], check=True, stdout=subprocess.DEVNULL)
        secure = ("--cluster-dir", folder + "/certs")
    cluster, single = Cluster(flags=secure, router_flags=secure), Server("-t", "1", "--node-id", "single-0")
    try:
        first_split, first_single, ttft_split, ttft_single, steps = [], [], [], [], []
        for r in range(a.rounds + 1):
            for url, firsts, ttfts in ((single.url, first_single, ttft_single), (cluster.url, first_split, ttft_split)):
                # ids of its own in each round, so that nothing is cached
                ids = [1000 + (i * 37 + r * 1009 + (url == single.url) * 501) % 40000 for i in range(a.prompt)]
                ttft, between = gaps(url, ids, 16)
                if r:
                    firsts.append(between[0])
                    ttfts.append(ttft)
                    steps += between[2:-1]
        sent = cluster.prefill[0].stats()["handoff_sent"]
        step = statistics.median(steps)
        split, one = statistics.median(first_split), statistics.median(first_single)
        print(f"bytes on the wire / raw KV of the pages sent: {sent['wire_bytes'] / sent['slab_bytes']:.4f}")
        print(f"prompt of {a.prompt} tokens, medians of {a.rounds} rounds, one thread a worker")
        print(f"first to second token: single {one:.1f} ms, split {split:.1f} ms; a decode step {step:.1f} ms: "
              f"{(split - one) / step:+.2f} steps above the single node")
        print(f"to the first token: single {statistics.median(ttft_single):.0f} ms, split {statistics.median(ttft_split):.0f} ms")
    finally:
        cluster.stop()
        single.stop()


if __name__ == "__main__":
    main()
