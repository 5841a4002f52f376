#!/usr/bin/env python3
"""What running answers notice of somebody else's prompts: the gaps between tokens of some streams, undisturbed and while long
prompts are read, on one hybrid process and on a prefill and a decode node, in turn in one run.

Each worker of the split has a core of its own. The router and this client share the prefill worker's, before which they go;
the hybrid has both cores. Prints medians, 99th percentiles and their ratios; --plot draws them (needs matplotlib)."""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "bench")]

from streams import Streams, fresh_ids, percentile  # noqa: E402


def pin(pid, cores, nice=0):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), cores)
        os.setpriority(os.PRIO_PROCESS, int(task), nice)


class Watch:
    """Streams that run, and what they notice."""

    def __init__(self, url, a):
        self.url, self.a = url, a
        self.calm, self.disturbed, self.first_ms, self.trace = [], [], [], []
        self.streams = Streams()
        self.running = [self.streams.ask(url, fresh_ids(16, 7 + i), a.context - 32) for i in range(a.streams)]
        self.streams.read_until(lambda: all(len(s.moments) > 8 for s in self.running))

    def _gaps(self, begin, end):
        return [(b, (b - a) * 1e3) for s in self.running for a, b in zip(s.moments, s.moments[1:]) if begin <= b <= end]

    def round(self, r):
        begin = time.perf_counter()
        self.streams.read_for(self.a.quiet)
        start = time.perf_counter()
        for i in range(self.a.prompts):
            asked = self.streams.ask(self.url, fresh_ids(self.a.prompt, 1000 + 10 * r + i), 1)
            self.streams.read_until(lambda: asked.ended)
            self.first_ms.append(asked.first_ms)
        end = time.perf_counter()
        calm, disturbed = self._gaps(begin, start), self._gaps(start, end)
        self.calm += [g for _, g in calm]
        self.disturbed += [g for _, g in disturbed]
        self.trace = [(t - start, g) for t, g in calm + disturbed]
        self.trace_end = end - start

    def end(self):
        for s in self.running:
            self.streams.drop(s)


def hybrid(a):
    from cluster import Server

    server = Server("-t", a.threads, "-np", a.streams + 2, "-c", a.context)
    return server.url, server.stop


def split(a):
    from cluster import Cluster

    cluster = Cluster(flags=("-np", a.streams + 2, "-c", a.context))
    cores = sorted(os.sched_getaffinity(0))
    try:
        pin(cluster.prefill[0].pid, {cores[0]}, 10)
        pin(cluster.decode[0].pid, {cores[1 % len(cores)]})
        pin(cluster.router.pid, {cores[0]}, 0)
    except PermissionError as e:
        print(f"not pinned: {e}", file=sys.stderr)
    return cluster.url, cluster.stop


def draw(watches, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"], plt.rcParams["svg.hashsalt"] = "none", "baton"
    figure, axes = plt.subplots(1, len(watches), figsize=(5.5 * len(watches), 3.6), squeeze=False, sharey=True, layout="constrained")
    for axis, (name, w) in zip(axes[0], watches.items()):
        axis.axvspan(0, w.trace_end, color="0.92", label="a prompt is read")
        axis.scatter(*zip(*w.trace[::4]), s=3, linewidths=0)  # a file of a size to look at
        axis.set_title(f"{name}: p99 {percentile(w.calm, 99):.0f} ms, with prompts {percentile(w.disturbed, 99):.0f} ms", fontsize=10)
        axis.set_xlabel("s")
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("ms since the stream's last token")
    axes[0][0].legend(fontsize=8)
    axes[0][0].set_ylim(bottom=0)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kinds", default="hybrid,split")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=2, help="one after the other, a round")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2, help="of the hybrid")
    parser.add_argument("--quiet", type=float, default=4, help="seconds undisturbed before each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plot", help="an SVG of each kind's last round")
    parser.add_argument("--save", help="a JSON file for the figures")
    a = parser.parse_args()
    os.environ["BATON_MODEL"] = a.model
    kinds, watches, report = {"hybrid": hybrid, "split": split}, {}, {}
    print(f"{a.streams} streams; gaps between tokens in ms: median and 99th percentile, undisturbed and while prompts of {a.prompt} are read")
    for kind in a.kinds.split(","):
        url, stop = kinds[kind](a)
        cores = os.sched_getaffinity(0)
        if kind == "split":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        try:
            w = watches[kind] = Watch(url, a)
            for r in range(a.rounds):
                w.round(r)
            w.end()
        finally:
            stop()
            os.sched_setaffinity(0, cores)
        p99, p99_disturbed = percentile(w.calm, 99), percentile(w.disturbed, 99)
        print(f"{kind:<7} {percentile(w.calm, 50):7.1f} {p99:7.1f}   {percentile(w.disturbed, 50):7.1f} {p99_disturbed:7.1f}   "
              f"ratio of the 99th {p99_disturbed / p99:.2f}   ({len(w.disturbed)} gaps; a prompt takes {percentile(w.first_ms, 50) / 1e3:.2f} s)",
              flush=True)
        report[kind] = {"calm_p50_ms": percentile(w.calm, 50), "calm_p99_ms": p99, "p50_ms": percentile(w.disturbed, 50),
                        "p99_ms": p99_disturbed, "ratio": p99_disturbed / p99, "prompt_s": percentile(w.first_ms, 50) / 1e3}
    if a.plot:
        draw(watches, a.plot)
    if a.save:
        pathlib.Path(a.save).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
