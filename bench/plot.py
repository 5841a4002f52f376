#!/usr/bin/env python3
"""Draws a CSV of bench/peers.py: how much of the machine's limit Baton reaches, and how many times llama.cpp's speed that is.
The SVG lies beside the CSV. Needs matplotlib."""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


def main():
    path = pathlib.Path(sys.argv[1])
    rows = list(csv.DictReader(open(path, newline="")))
    threads = sorted({int(r["threads"]) for r in rows})
    tests = list(dict.fromkeys(r["test"] for r in rows))
    models = list(dict.fromkeys(r["model"] for r in rows))
    plt.rcParams["svg.fonttype"], plt.rcParams["svg.hashsalt"] = "none", "baton"
    figure, axes = plt.subplots(2, len(threads), figsize=(1 + 6 * len(threads), 7), squeeze=False, sharey="row", layout="constrained")
    for column, n in enumerate(threads):
        for line, (field, title, scale) in enumerate((("of_limit", "% of the limit", 100), ("ratio", "times llama.cpp", 1))):
            axis, width = axes[line][column], 0.8 / len(models)
            for i, model in enumerate(models):
                found = {r["test"]: float(r[field]) * scale for r in rows if r["model"] == model and int(r["threads"]) == n}
                at = [x for x, t in enumerate(tests) if t in found]
                axis.bar([x + i * width - 0.4 for x in at], [found[tests[x]] for x in at], width, label=model, align="edge")
            axis.set_xticks(range(len(tests)), tests, rotation=30, ha="right", fontsize=8)
            axis.set_title(f"{title}, {n} thread{'s' if n > 1 else ''}", fontsize=10)
            axis.axhline(100 if line == 0 else 1, color="black", linewidth=0.5)
            axis.grid(axis="y", alpha=0.3)
    axes[0][-1].legend(fontsize=7)
    figure.suptitle(f"{rows[0]['cpu']}, {rows[0]['tier']}", fontsize=10)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    print(path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
