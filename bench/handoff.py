#!/usr/bin/env python3
"""What a hand-off costs, each beside the same without one, in turn in one run; medians. The router, the nodes and the single
process are real processes on this host, a node has one compute thread.

    transfer   the KV of a prompt from process to process, against a plain socket copy of the same bytes (`baton bench --transfer`)
    overlap    the second token of an answer: split against a single process
    delta      bytes that are sent for a prompt whose beginning the decode node holds
    burst      a question behind a burst of long prompts that are cancelled
    router     the router's own time for a token, at 64 streams"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "bench")]

from streams import Streams, cpu_seconds, fresh_ids, one  # noqa: E402


def transfer(a, report):
    from cluster import BIN

    for prompt in (128, 512, a.prompt):
        text = subprocess.run([BIN, "bench", "--transfer", "-m", a.model, "-p", str(prompt), "-r", str(3 * a.rounds)],
                              check=True, stdout=subprocess.PIPE, text=True).stdout
        print(text, end="")
        report[f"transfer {prompt}"] = {line[:18].strip(): float(line.split("%")[0].split()[-1]) / 100
                                        for line in text.splitlines()[1:]}


@contextlib.contextmanager
def pair(a, single=False, **flags):
    """A cluster of two nodes, and beside it a single process."""
    from cluster import BIN, Cluster, Server

    secure = ()
    folder = tempfile.TemporaryDirectory()
    if a.tls:
        subprocess.run([BIN, "cluster", "init", folder.name + "/certs"], check=True, stdout=subprocess.DEVNULL)
        secure = ("--cluster-dir", folder.name + "/certs")
    cluster = Cluster(flags=(*secure, *flags.get("flags", ())), router_flags=secure)
    alone = Server("-t", "1", "--node-id", "single-0", *flags.get("flags", ())) if single else None
    try:
        yield cluster, alone
    finally:
        cluster.stop()
        if alone:
            alone.stop()
        folder.cleanup()


def overlap(a, report):
    print("second token of an answer (ms from the request), one thread a worker")
    print(f"{'prompt':>8} {'first, single':>14} {'first, split':>13} {'second, single':>15} {'second, split':>14} {'a step':>7} {'allowed':>8}")
    with pair(a, single=True) as (cluster, single):
        one(single.url, fresh_ids(64, 1), 8), one(cluster.url, fresh_ids(64, 2), 8)
        for prompt in (128, 512, a.prompt):
            seen = {single.url: [], cluster.url: []}
            for r in range(a.rounds):
                for k, url in list(enumerate(seen))[::1 if r % 2 else -1]:
                    seen[url].append(one(url, fresh_ids(prompt, 10 + 2 * (r + 100 * prompt) + k), 16))
            hybrid, split = seen.values()
            step = statistics.median(g for s in hybrid for g in s.gaps_ms[1:])
            middle = [statistics.median(getattr(s, of) for s in which) for of in ("first_ms", "second_ms") for which in (hybrid, split)]
            allowed = middle[2] + step + 0.05 * middle[0]
            print(f"{prompt:>8} {middle[0]:>14.1f} {middle[1]:>13.1f} {middle[2]:>15.1f} {middle[3]:>14.1f} {step:>7.1f} {allowed:>8.1f}")
            report[f"overlap {prompt}"] = dict(zip(("first_single", "first_split", "second_single", "second_split"), middle), step=step)
        sent = cluster.prefill[0].stats()["handoff_sent"]
        print(f"bytes on the wire / KV of the pages sent: {sent['wire_bytes'] / sent['slab_bytes']:.4f}")
        report["wire / slab bytes"] = sent["wire_bytes"] / sent["slab_bytes"]


def delta(a, report):
    with pair(a) as (cluster, _):
        shares, shared = [], a.prompt * 9 // 10
        for r in range(a.rounds):
            before = cluster.prefill[0].stats()["handoff_sent"]["slab_bytes"]
            one(cluster.url, fresh_ids(a.prompt, 2 * r), 8)
            whole = cluster.prefill[0].stats()["handoff_sent"]["slab_bytes"]
            one(cluster.url, fresh_ids(a.prompt, 2 * r)[:shared] + fresh_ids(a.prompt, 2 * r + 1)[shared:], 8)
            shares.append((cluster.prefill[0].stats()["handoff_sent"]["slab_bytes"] - whole) / (whole - before))
    print(f"a prompt of {a.prompt} tokens that shares {shared} with one before: {statistics.median(shares):.1%} of its KV is sent")
    report["delta"] = statistics.median(shares)


def burst(a, report):
    with pair(a, flags=("--kv-mem", "600M")) as (cluster, _):
        alone, behind = [], []
        for r in range(a.rounds):
            streams = Streams()
            alone.append(one(cluster.url, fresh_ids(16, 3000 + 2 * r), 8).first_ms)
            crowd = [streams.ask(cluster.url, fresh_ids(a.prompt, 100 * r + i), 64) for i in range(50)]
            streams.read_for(0.5)
            for c in crowd:
                streams.drop(c)
            behind.append(one(cluster.url, fresh_ids(16, 3001 + 2 * r), 8).first_ms)
    print(f"first token of a short question: alone {statistics.median(alone):.1f} ms, right behind 50 cancelled prompts of {a.prompt} "
          f"tokens {statistics.median(behind):.1f} ms, at most {max(behind):.1f} ms (a chunk is made to last 100 ms)")
    report["burst"] = {"alone_ms": statistics.median(alone), "behind_ms": statistics.median(behind), "worst_ms": max(behind)}


def router(a, report):
    with pair(a, flags=("-np", "64", "-c", "2048", "--kv-mem", "1G")) as (cluster, _):
        streams = Streams()
        running = [streams.ask(cluster.url, fresh_ids(16, i), 1500) for i in range(64)]
        streams.read_until(lambda: all(len(s.moments) > 4 for s in running))
        n, spent = sum(len(s.moments) for s in running), cpu_seconds(cluster.router.pid)
        streams.read_for(a.seconds)
        n, spent = sum(len(s.moments) for s in running) - n, cpu_seconds(cluster.router.pid) - spent
        for s in running:
            streams.drop(s)
    print(f"router: {spent / n * 1e6:.0f} us of a core for a token, {n} tokens of 64 streams in {a.seconds} s")
    report["router"] = {"us_a_token": spent / n * 1e6, "tokens": n}


def draw(report, path):
    """The overlap: when the first and the second token come."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"], plt.rcParams["svg.hashsalt"] = "none", "baton"
    rows = [(k.split()[1], v) for k, v in report.items() if k.startswith("overlap ")]
    figure, axes = plt.subplots(1, len(rows), figsize=(4 * len(rows), 2.2), layout="constrained")
    for axis, (prompt, v) in zip(axes, rows):
        for y, which in enumerate(("split", "single")):
            first, second = v[f"first_{which}"], v[f"second_{which}"]
            axis.barh(y, first, color="#9bbbe0", label="to the first token" if y else None)
            axis.barh(y, second - first, left=first, color="#d9772b", label="to the second" if y else None)
            axis.text(second, y, f" +{second - first:.0f} ms", va="center", fontsize=8)
        axis.set_yticks((0, 1), ("prefill and\ndecode node", "one process"), fontsize=8)
        axis.set_xlim(0, 1.18 * max(v["second_split"], v["second_single"]))
        axis.set_title(f"{prompt} tokens, a decode step is {v['step']:.0f} ms", fontsize=9)
        axis.set_xlabel("ms", fontsize=8)
    axes[0].legend(fontsize=7, loc="center")
    figure.savefig(path, metadata={"Date": None})


PARTS = {f.__name__: f for f in (transfer, overlap, delta, burst, router)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a long prompt")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10, help="how long the router is watched")
    parser.add_argument("--tls", action="store_true", help="the cluster's links are TLS")
    parser.add_argument("--plot", help="an SVG of the overlap (needs matplotlib)")
    parser.add_argument("--save", help="a JSON file for the figures")
    a = parser.parse_args()
    os.environ["BATON_MODEL"] = a.model
    report = {}
    for name in a.only.split(","):
        if name not in PARTS:
            parser.error(f"there is no part {name}; there are {', '.join(PARTS)}")
        PARTS[name](a, report)
        sys.stdout.flush()
    if a.plot and "overlap" in a.only:
        draw(report, a.plot)
    if a.save:
        pathlib.Path(a.save).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
