#!/usr/bin/env python3
"""Baton against llama.cpp on the same file and threads, in turn in one run: medians and ratios, never lone figures.

llama.cpp comes as the package llama-cpp-python, built natively into .venv-peers the first time (some minutes)."""

import argparse
import csv
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"
BATON = ROOT / "build/release/baton"


def peer_python(given):
    if given:
        return given
    python = PEERS / "bin/python"
    if not (PEERS / ".built").exists():
        print("building llama-cpp-python for this machine (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        env = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-binary", "llama-cpp-python", "llama-cpp-python"], check=True, env=env)
        (PEERS / ".built").touch()
    return str(python)


def baton(model, threads, p, n, repeats):
    out = subprocess.run([str(BATON), "bench", "-m", model, "-t", str(threads), "-p", str(p), "-n", str(n), "-r", str(repeats), "-o", "json"],
                         capture_output=True, text=True, check=True).stdout
    rows = json.loads(out)
    return {r["test"]: r["tokens_per_second"] for r in rows}, rows[0]["backend"]


def peer(python, model, threads, p, n, repeats):
    out = subprocess.run([python, str(ROOT / "bench/llama_cpp_bench.py"), model, "-t", str(threads), "-p", str(p), "-n", str(n), "-r", str(repeats)],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--peer-python", help="a Python that has llama_cpp already")
    parser.add_argument("--csv", help="also append rows here")
    a = parser.parse_args()
    python = peer_python(a.peer_python)
    rows = []
    print(f"{'test':<8}{'threads':>8}{'baton tok/s':>14}{'llama.cpp tok/s':>18}{'ratio':>8}   ratio of each round")
    for threads in (int(t) for t in a.threads.split(",")):
        ours, theirs, tier = [], [], ""
        for _ in range(a.rounds):
            result, tier = baton(a.model, threads, a.p, a.n, a.repeats)
            ours.append(result)
            theirs.append(peer(python, a.model, threads, a.p, a.n, a.repeats))
        for test in (f"pp{a.p}", f"tg{a.n}"):
            x, y = [o[test] for o in ours], [t[test] for t in theirs]
            ratios = [i / j for i, j in zip(x, y)]
            print(f"{test:<8}{threads:>8}{statistics.median(x):>14.1f}{statistics.median(y):>18.1f}{statistics.median(ratios):>8.2f}   "
                  + " ".join(f"{r:.2f}" for r in ratios), flush=True)
            rows.append([cpu_name(), tier, os.path.basename(a.model), test, threads, round(statistics.median(x), 1),
                         round(statistics.median(y), 1), round(statistics.median(ratios), 3)])
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            writer = csv.writer(f)
            if new:
                writer.writerow(["cpu", "tier", "model", "test", "threads", "baton_tps", "llama_cpp_tps", "ratio"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
