#!/usr/bin/env python3
"""Chaos: a cluster under mixed load, one fault a seed, and every stream's bytes compared with an undisturbed run's.

    chaos.py --seeds 300 [--first 0] [--only kill,cut] [--small] [--out build/chaos-report]

Everything about a seed (who asks what and when, which fault, whom it meets, when) follows from its number and is printed.
A seed fails when an accepted stream is lost, differs or hangs, or when afterwards a page, a request, a file descriptor or a
node is missing or left over; the logs of all processes are kept, with the command that runs that seed again."""

import argparse
import collections
import csv
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from client import Stream  # noqa: E402
from cluster import Server  # noqa: E402
from faults import KINDS, Fault, Plan  # noqa: E402
from pool import POOL, SMALL, learn  # noqa: E402
from stage import Stage  # noqa: E402

HANG_S = 60
DRIFT_BYTES = 64 << 20


class Script:
    """What a seed decides, before anything starts."""

    def __init__(self, seed, kinds=KINDS, small=False):
        rng = random.Random(seed)
        pool = SMALL if small else POOL
        self.seed, self.kind = seed, kinds[seed % len(kinds)]
        n = rng.randrange(5, 9)
        self.asks = [rng.choice(pool) for _ in range(n)]
        spread_s = rng.choice((0, 0, 0.3, 1.0))
        self.delays = [round(rng.uniform(0, spread_s), 3) for _ in range(n)]
        self.plan = Plan(self.kind, rng, n)
        self.leave_at = rng.choice((-50, -400, 1, 2, 5, 12))
        if self.kind not in ("none", "slow-reader", "leave") and rng.random() < 0.8:
            # where something is to be hit, most often a stream that lasts
            self.asks[self.plan.focus] = rng.choice([a for a in pool if a.streamed and a.body["max_tokens"] >= 33])
        if self.kind == "poison":
            self.asks[self.plan.focus] = rng.choice([a for a in pool if a.streamed and a.body["max_tokens"] >= 33])

    def streams(self, url):
        manner = {"slow-reader": "slow", "leave": "leave"}.get(self.kind, "")
        return [Stream(url, ask, f"s{self.seed}-{i}", delay, manner if i == self.plan.focus else "", self.leave_at)
                for i, (ask, delay) in enumerate(zip(self.asks, self.delays))]

    def __str__(self):
        return f"{self.plan}; {len(self.asks)} streams: " + " ".join(
            f"{a.name}+{int(d * 1000)}" for a, d in zip(self.asks, self.delays))


class Verdict:
    def __init__(self, script):
        self.script, self.kind = script, script.kind
        self.n = self.refused = self.lost = self.different = self.hung = self.leaked = 0
        self.faults, self.gaps, self.gaps_hit, self.notes = [], [], [], []
        self.settle_s = 0.0

    @property
    def failed(self):
        return bool(self.faults)

    def fault(self, kind, text):
        setattr(self, kind, getattr(self, kind) + 1)
        self.faults.append(f"{kind}: {text}")


def judge_stream(v, i, s, stage, resumed):
    plan, code = v.script.plan, s.error_code()
    mine = i == plan.focus
    name = f"stream {i} ({s.ask.name}, {s.request_id})"
    if s.hung or s.is_alive():
        v.fault("hung", f"{name} has said nothing for {HANG_S} s after {s.n_events} events")
    elif mine and v.kind == "leave" and s.left:
        pass
    elif mine and v.kind == "poison":
        if code not in ("request_crashed_nodes", None):
            v.fault("lost", f"{name} crashes its nodes and ended as {code} instead of request_crashed_nodes")
        elif code is None:
            v.notes.append("the poison outlived its nodes" if len(v.killed) < 2 else "the poison lived")
            if len(v.killed) >= 2:
                v.fault("lost", f"{name} crashed {v.killed} and was not ended")
    elif s.status in (429, 503) and not stage.accepted(s.request_id):
        v.refused += 1
        if not s.retry_after:
            v.fault("lost", f"{name} was refused with {s.status} and no Retry-After")
    elif code is not None:
        v.fault("lost", f"{name} ended as {code} after {s.n_events} events: {s.data[-200:]!r}")
    elif s.ask.digest_of(s.data) != s.ask.digest:
        v.fault("different", f"{name} differs from the undisturbed answer")
    elif s.ask.streamed and s.manner == "":
        gap = max(0.0, s.silence_s() - s.ask.silence_s)
        v.gaps.append(gap)
        if s.request_id in resumed:
            v.gaps_hit.append(gap)


def run_seed(stage, script):
    v = Verdict(script)
    stage.forget_logs()
    streams = script.streams(stage.url)
    fault = Fault(script.plan, stage, streams)
    for s in streams:
        s.start()
    fault.start()
    end = time.monotonic() + 2.5 * HANG_S
    for s in streams:
        s.join(max(0.1, end - time.monotonic()))
    fault.over.set()
    fault.join(10)
    v.killed, v.met, v.n = fault.killed, fault.done, len(streams)
    stage.heal()
    try:
        v.settle_s = stage.settle()
    except AssertionError as e:
        v.fault("leaked", str(e))
    resumed = stage.resumed()
    for i, s in enumerate(streams):
        judge_stream(v, i, s, stage, resumed)
    v.streams, v.n_resumed = streams, len(resumed)
    return v


# ---- the report ----


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else 0.0


def table(verdicts):
    rows = []
    for kind in KINDS:
        of = [v for v in verdicts if v.kind == kind]
        if not of:
            continue
        hit, all_ = [g for v in of for g in v.gaps_hit], [g for v in of for g in v.gaps]
        row = {"fault": kind, "seeds": len(of), "streams": sum(v.n for v in of), "resumed": sum(v.n_resumed for v in of),
               "refused": sum(v.refused for v in of), "lost": sum(v.lost for v in of),
               "different": sum(v.different for v in of), "hung": sum(v.hung for v in of), "leaked": sum(v.leaked for v in of)}
        for name, gaps in (("gap", all_), ("gap_resumed", hit)):
            row.update({f"{name}_p50_ms": round(1000 * percentile(gaps, 0.5)), f"{name}_p99_ms": round(1000 * percentile(gaps, 0.99)),
                        f"{name}_max_ms": round(1000 * max(gaps, default=0))})
        row["settle_max_s"] = round(max(v.settle_s for v in of), 1)
        rows.append(row)
    return rows


def print_table(rows):
    names = list(rows[0])
    widths = [max(len(n), *(len(str(r[n])) for r in rows)) for n in names]
    for r in ({n: n for n in names}, *rows):
        print("  ".join(str(r[n]).rjust(w) if n != "fault" else str(r[n]).ljust(w) for n, w in zip(names, widths)))


def save(out, rows, verdicts):
    with open(out / "report.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    seeds = [{"seed": v.script.seed, "fault": v.kind, "script": str(v.script), "met": v.met, "failed": v.faults,
              "resumed": v.n_resumed, "settle_s": round(v.settle_s, 2)} for v in verdicts]
    (out / "report.json").write_text(json.dumps({"faults": rows, "seeds": seeds}, indent=1) + "\n")


class Drift:
    """Memory of processes that live on: what each had after its first seeds against what it has now."""

    def __init__(self):
        self.first, self.last, self.seen = {}, {}, collections.Counter()

    def look(self, stage):
        for name in stage.servers:
            key = (name, stage.pid(name))
            self.seen[key] += 1
            resident = stage.resident_bytes(name)
            if self.seen[key] == 15:
                self.first[key] = resident
            self.last[key] = resident

    def worst(self):
        grown = [(self.last[k] - v, k[0], v, self.last[k]) for k, v in self.first.items()]
        return max(grown, default=(0, "", 0, 0))


def again(seed, kinds, small):
    only = "" if kinds == KINDS else f" ONLY={','.join(kinds)}"
    return f"make chaos SEEDS=1 FIRST={seed}{only}{' SMALL=--small' if small else ''}"


def run(seeds, kinds, out, patience=1 << 30, small=False):
    out = pathlib.Path(out)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    scripts = [Script(seed, kinds, small) for seed in seeds]
    begin = time.monotonic()
    single = Server("--node-id", "hybrid-0", "-c", "2048", "--kv-mem", "300M")
    learn(single, [a for s in scripts for a in s.asks])
    single.stop()
    print(f"{len({a.name for s in scripts for a in s.asks})} undisturbed answers in {time.monotonic() - begin:.0f} s", flush=True)
    stage, verdicts, drift, n_failed = None, [], Drift(), 0
    try:
        for script in scripts:
            stage = stage or Stage()
            began = time.monotonic()
            v = run_seed(stage, script)
            verdicts.append(v)
            print(f"seed {script.seed} {'FAILED' if v.failed else 'ok'} {time.monotonic() - began:.1f} s  {script}"
                  f"{'  met ' + v.met if v.met else ''}  resumed {v.n_resumed}, refused {v.refused}"
                  f"{''.join('  ' + n for n in v.notes)}", flush=True)
            if v.failed:
                n_failed += 1
                folder = out / f"seed-{script.seed}"
                stage.save_logs(folder)
                keep_answers(folder, v)
                for f in v.faults:
                    print(f"    {f}")
                print(f"    again: {again(script.seed, kinds, small)}\n    logs:  {folder}", flush=True)
                stage.stop()
                stage = None
                if n_failed >= patience:
                    break
            else:
                drift.look(stage)
    finally:
        if stage:
            stage.stop()
    rows = table(verdicts)
    save(out, rows, verdicts)
    print_table(rows)
    grown, who, first, last = drift.worst()
    print(f"resident memory: at most {grown / 1e6:.1f} MB more than after 15 seeds" + (f" ({who}: {first / 1e6:.0f} to {last / 1e6:.0f} MB)" if who else ""))
    print(f"{len(verdicts)} seeds, {n_failed} failed, {time.monotonic() - begin:.0f} s; {out}/report.csv, report.json")
    return n_failed == 0 and grown < DRIFT_BYTES


def keep_answers(folder, v):
    lines = [str(v.script), f"met {v.met}", *v.faults]
    for i, s in enumerate(v.streams):
        lines.append(f"stream {i} {s.request_id} {s.ask.name} status={s.status} events={s.n_events} error={s.error_code()} "
                     f"silence={s.silence_s():.2f}")
        (folder / f"answer-{i}").write_bytes(s.data)
    (folder / "verdict.txt").write_text("\n".join(lines) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=20)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--only", default="", help="faults, comma-separated")
    p.add_argument("--out", default="build/chaos-report")
    p.add_argument("--small", action="store_true", help="few and short requests")
    p.add_argument("--patience", type=int, default=1 << 30, help="stop after so many failed seeds")
    a = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended on the way out
    kinds = tuple(a.only.split(",")) if a.only else KINDS
    unknown = set(kinds) - set(KINDS)
    if unknown:
        p.error(f"unknown faults {unknown}; there are {', '.join(KINDS)}")
    sys.exit(0 if run(range(a.first, a.first + a.seeds), kinds, a.out, a.patience, a.small) else 1)


if __name__ == "__main__":
    main()
