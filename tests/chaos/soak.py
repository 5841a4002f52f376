#!/usr/bin/env python3
"""Soak: a cluster at a constant number of streams for a long time, without faults. Every answer is compared with an undisturbed
one; memory, files and pages of all processes are looked at while it runs, and must be as before when it has ended.

    soak.py --minutes 30 [--streams 64] [--out build/soak]

Drift is what the resident memory of a process gains from the first third of the run (its first minutes aside, in which caches
fill) to the last, in medians."""

import argparse
import csv
import os
import pathlib
import random
import signal
import statistics
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from client import Stream  # noqa: E402
from cluster import Cluster, Server, wait_until  # noqa: E402
from pool import POOL, learn  # noqa: E402

DRIFT_BYTES = 16 << 20
LOOK_S = 5


def resident_bytes(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")


def n_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Load:
    """One of the streams that are always there: asks, compares, asks again."""

    def __init__(self, url, number, end, found):
        self.url, self.number, self.end, self.found = url, number, end, found
        self.n = self.n_refused = self.n_left = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        rng = random.Random(self.number)
        while time.monotonic() < self.end and len(self.found) < 20:
            ask = rng.choice(POOL)
            leaves = rng.random() < 0.05
            s = Stream(self.url, ask, f"soak-{self.number}-{self.n}", manner="leave" if leaves else "", leave_at=rng.choice((-100, 1, 5)))
            s.run()
            self.n += 1
            self.n_left += leaves
            if leaves:
                continue
            if s.status in (429, 503) and s.retry_after:
                self.n_refused += 1
                time.sleep(0.5)
            elif s.hung or s.error_code() is not None:
                self.found.append(f"{s.request_id} ({ask.name}) ended as {'silence' if s.hung else s.error_code()}: {s.data[-200:]!r}")
            elif ask.digest_of(s.data) != ask.digest:
                self.found.append(f"{s.request_id} ({ask.name}) differs from the undisturbed answer")


def drift(rows, name):
    """In bytes; the first sixth of the run is left out."""
    values = [r[name] for r in rows][len(rows) // 6:]
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) - statistics.median(values[:third])


def soak(minutes, n_streams, out, flags=()):
    single = Server("--node-id", "hybrid-0", "-c", "2048", "--kv-mem", "300M")
    learn(single, POOL)
    single.stop()
    cluster = Cluster(n_prefill=2, n_decode=2, flags=("-c", "2048", "-np", str(n_streams // 2), "--kv-mem", "400M", *flags), router_flags=flags)
    names = {s.flags[s.flags.index("--node-id") + 1]: s for s in cluster.servers}
    found, rows = [], []
    base_files = {name: n_files(s.pid) for name, s in names.items()}
    begin = time.monotonic()
    loads = [Load(cluster.url, i, begin + 60 * minutes, found) for i in range(n_streams)]
    try:
        while any(l.thread.is_alive() for l in loads):
            time.sleep(LOOK_S)
            row = {"seconds": round(time.monotonic() - begin), "answers": sum(l.n for l in loads)}
            for name, s in names.items():
                row[name] = resident_bytes(s.pid)
                row[name + " files"] = n_files(s.pid)
            rows.append(row)
            if len(rows) % 12 == 0:
                print(f"{row['seconds'] / 60:5.1f} min  {row['answers']} answers  " +
                      "  ".join(f"{name} {row[name] >> 20} MB" for name in names), flush=True)
        wait_until(lambda: all(n_files(s.pid) <= base_files[name] for name, s in names.items()), "files closed", 30)
        cluster.check_no_leak()
        state = cluster.router.stats()
        assert state["requests"] == state["waiting"] == state["journal_bytes"] == state["inexact"] == 0, state
    finally:
        with open(out / "soak.csv", "w", newline="") as f:
            writer = csv.DictWriter(f, list(rows[0]) if rows else ["seconds"])
            writer.writeheader()
            writer.writerows(rows)
        cluster.stop()
    drifts = {name: drift(rows, name) for name in names}
    print(f"{sum(l.n for l in loads)} answers at {n_streams} streams in {minutes} minutes; {sum(l.n_left for l in loads)} clients left, "
          f"{sum(l.n_refused for l in loads)} refused; "
          f"{state['local']:.0f} prompts read by decode nodes, {state['resumed']:.0f} attempts made again; pages and files are back")
    print("drift: " + ", ".join(f"{name} {d / 1e6:+.1f} MB" for name, d in drifts.items()))
    for f in found:
        print("    " + f)
    return not found and max(drifts.values()) < DRIFT_BYTES


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--out", default="build/soak")
    p.add_argument("--flags", default="", help="more flags for every node, such as \"--peer-dead-ms 60000\" on a host that others use")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)
    sys.exit(0 if soak(a.minutes, a.streams, out, a.flags.split()) else 1)


if __name__ == "__main__":
    main()
