#!/usr/bin/env python3
"""Baton against llama.cpp on the same files and threads, in turn in one run: medians, ratios and fractions of the machine's
limit, never lone figures. Rows go to bench/results/, one CSV a machine, and from there into a plot.

llama.cpp comes as the package llama-cpp-python, built natively into .venv-peers the first time (some minutes). Files of real
shapes with random weights are made as they are needed (bench/make_model.py)."""

import argparse
import csv
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"
COLUMNS = ["cpu", "tier", "model", "test", "threads", "baton_tps", "of_limit", "limit", "unit", "llama_cpp_tps", "ratio"]
# name: what `baton bench` is asked for, and what bench/llama_cpp_bench.py is
TESTS = {
    "prefill": (["-p", "512", "-n", "0"], ["-p", "512", "-n", ""]),
    "long": (["-p", "2048", "-n", "0"], ["-p", "2048", "-n", ""]),
    "decode": (["-p", "0", "-n", "128"], ["-p", "", "-n", "128:0:1"]),
    "depth": (["-p", "0", "-n", "64", "-d", "2048"], ["-p", "", "-n", "64:2048:1"]),
    "batch": (["-p", "0", "-n", "32", "-d", "128", "-np", "8,16"], ["-p", "", "-n", "32:128:8,32:128:16"]),
}


def peer_python(given):
    if given:
        return given
    python = PEERS / "bin/python"
    if not (PEERS / ".built").exists():
        print("building llama-cpp-python for this machine (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        env = {**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON"}
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-binary", "llama-cpp-python", "llama-cpp-python", "numpy",
                        "matplotlib"], check=True, env=env)
        (PEERS / ".built").touch()
    return str(python)


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def baton(program, model, threads, arguments, repeats):
    rows = output([program, "bench", "-m", model, "-t", str(threads), "-r", str(repeats), "-o", "json", *arguments])
    return {r["test"]: r for r in rows}


def peer(python, model, threads, arguments, repeats):
    return output([python, str(ROOT / "bench/llama_cpp_bench.py"), model, "-t", str(threads), "-r", str(repeats), *arguments])


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def models(a, python):
    if a.model:
        yield from a.model
    for shape in filter(None, (a.shapes or "").split(",")):
        for kind in a.types.split(","):
            made = subprocess.run([python, str(ROOT / "bench/make_model.py"), shape, kind, a.folder], check=True, capture_output=True, text=True)
            yield made.stdout.split()[-1]


def compare(a, python, model, threads, test):
    """One row for each figure of a test."""
    ours, theirs = [], []
    for _ in range(a.rounds):
        ours.append(baton(a.baton, model, threads, TESTS[test][0], a.repeats))
        theirs.append(peer(python, model, threads, TESTS[test][1], a.repeats))
    for name, first in ours[0].items():
        x, y = [o[name]["tokens_per_second"] for o in ours], [t[name] for t in theirs]
        fraction = statistics.median(o[name]["of_limit"] for o in ours)
        yield dict(zip(COLUMNS, [
            cpu_name(), first["backend"], os.path.basename(model).removesuffix(".gguf"), name, threads, round(statistics.median(x), 1),
            round(fraction, 3), round(statistics.median(o[name]["limit"] for o in ours), 1), first["unit"],
            round(statistics.median(y), 1), round(statistics.median(i / j for i, j in zip(x, y)), 2)]))


def keep(path, rows):
    """The file's rows with these in the place of older ones."""
    def key(r):
        return r["tier"], r["model"], r["test"], str(r["threads"])

    old = list(csv.DictReader(open(path, newline=""))) if path.exists() else []
    new = {key(r) for r in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([r for r in old if key(r) not in new] + rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="a GGUF file; may be repeated")
    parser.add_argument("--shapes", help="qwen3-0.6b,llama-3.2-1b,smollm2-135m: files to make")
    parser.add_argument("--types", default="Q8_0,Q4_0,Q4_K_M,BF16,F16", help="of the shapes")
    parser.add_argument("--folder", default=str(ROOT / "models"), help="where they lie")
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--repeats", type=int, default=2, help="of a turn")
    parser.add_argument("--baton", default=str(ROOT / "build/release/baton"))
    parser.add_argument("--peer-python", help="a Python that has llama_cpp, numpy and matplotlib already")
    parser.add_argument("--csv", type=pathlib.Path, help="default: bench/results/CPU-TIER.csv")
    a = parser.parse_args()
    if not a.model and not a.shapes:
        parser.error("--model or --shapes is needed")
    python = peer_python(a.peer_python)
    print(f"{'model':<24}{'test':<18}{'threads':>7}{'baton t/s':>11}{'of the limit':>14}{'llama.cpp t/s':>15}{'ratio':>7}", flush=True)
    path = a.csv
    for model in models(a, python):
        for threads in (int(t) for t in a.threads.split(",")):
            for test in a.tests.split(","):
                rows = list(compare(a, python, model, threads, test))
                for r in rows:
                    print(f"{r['model']:<24.24}{r['test']:<18}{threads:>7}{r['baton_tps']:>11}{r['of_limit']:>14.0%}"
                          f"{r['llama_cpp_tps']:>15}{r['ratio']:>7}", flush=True)
                path = path or ROOT / "bench/results" / (re.sub(r"[^a-z0-9]+", "-", f"{cpu_name()}-{rows[0]['tier']}".lower()) + ".csv")
                keep(path, rows)
    subprocess.run([python, str(ROOT / "bench/plot.py"), str(path)], check=False)


if __name__ == "__main__":
    main()
