#!/usr/bin/env python3
"""The demo: a router, a prefill node and a decode node on loopback answer a question; then a proof, which fails if it does
not hold: the work really was split, and a single process gives the same bytes."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import canonical  # noqa: E402
from cluster import MODEL, Cluster, Server  # noqa: E402

CHAT = "/v1/chat/completions"
QUESTION = "Why do relay runners pass a baton? Answer in two sentences."


def body(question, **more):
    return {"messages": [{"role": "user", "content": question}], "max_tokens": 80, "temperature": 0, **more}


def stream_answer(url):
    """Prints the answer as it comes; returns the moments at which tokens came."""
    request = urllib.request.Request(url + CHAT, json.dumps(body(QUESTION, stream=True)).encode(),
                                     {"Content-Type": "application/json"})
    moments = []
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            text = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if text:
                moments.append(time.monotonic())
                print(text, end="", flush=True)
    print("\n")
    return moments


def proof_of_split(cluster, before, moments):
    after = {w.flags[3]: w.stats() for w in cluster.workers}
    rows = []
    for name in after:
        a, b = before[name]["engine"], after[name]["engine"]
        rows.append((name, b["prompt_tokens_computed"] - a["prompt_tokens_computed"], b["tokens_sampled"] - a["tokens_sampled"]))
    print(f"{'node':<12}{'prompt tokens computed':>24}{'tokens sampled':>16}")
    for row in rows:
        print(f"{row[0]:<12}{row[1]:>24}{row[2]:>16}")
    sent, received = after["prefill-0"]["handoff_sent"], after["decode-0"]["handoff_received"]
    sent0 = before["prefill-0"]["handoff_sent"]
    pages, raw, wire = (sent[k] - sent0[k] for k in ("pages", "slab_bytes", "wire_bytes"))
    print(f"\nhanded over: {pages:.0f} pages, {raw:,.0f} bytes of keys and values, {wire:,.0f} on the wire "
          f"({wire / raw:.4f}x), {received['committed']:.0f} hand-offs committed")
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    if len(gaps) > 2:
        step = sorted(gaps[1:])[len(gaps[1:]) // 2]
        print(f"first to second token: {gaps[0] * 1e3:.1f} ms; one decode step: {step * 1e3:.1f} ms")
    (_, computed_p, sampled_p), (_, computed_d, sampled_d) = rows
    return computed_p > 0 and sampled_p == 1 and computed_d == 0 and sampled_d > 0


def digest(answers):
    return hashlib.sha256(b"\n".join(answers)).hexdigest()


def proof_of_sameness(cluster, single):
    ok = True
    kinds = {
        "greedy": [body(QUESTION)],
        "seeded": [body(QUESTION, temperature=0.9, top_p=0.95, seed=2024)],
        "8 at once": [body(f"Tell me fact number {i} about running.", temperature=0.5 * (i % 2), seed=i, max_tokens=40) for i in range(8)],
    }
    for kind, bodies in kinds.items():
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            split = digest([canonical.body(a) for a in pool.map(lambda b: cluster.post(CHAT, b), bodies)])
            one = digest([canonical.body(a) for a in pool.map(lambda b: single.post(CHAT, b), bodies)])
        same = split == one
        ok = ok and same
        print(f"{kind:<10} split sha256 {split[:16]}.. {'=' if same else '!='} single sha256 {one[:16]}..   "
              f"{'identical' if same else 'DIFFERENT'}")
    return ok


def main():
    started = []
    try:
        cluster = Cluster()
        started += cluster.servers
        for s, role in zip(cluster.servers, ("router", "prefill", "decode")):
            print(f"{role:<8} pid {s.pid:<8} http {s.url[7:]}" + (f"   serving {s.serving}" if s.serving else ""))
        print(f"\nquestion: {QUESTION}\nanswer (of a model of 135 million weights; it is small, not confused by the hand-off):\n  ", end="")
        before = {w.flags[3]: w.stats() for w in cluster.workers}
        moments = stream_answer(cluster.url)
        split = proof_of_split(cluster, before, moments)
        print()
        single = Server("--node-id", "single-0")
        started.append(single)
        same = proof_of_sameness(cluster, single)
    finally:
        for s in started:
            s.stop(expect=None)
    print()
    if not (split and same):
        print("The proof does NOT hold.")
        return 1
    relative = os.path.relpath(MODEL)
    print("The proof holds: the prompt was computed by one process, the answer by another, and the bytes are those of one.\n\n"
          "To keep a cluster running:\n"
          f"  build/release/baton serve -m {relative} --roles 1p1d\n"
          "and to ask it:\n"
          "  curl -sN http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' "
          "-d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],\"stream\":true}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
