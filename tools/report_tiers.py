#!/usr/bin/env python3
"""Says in one line which kernel tiers a test run covered natively, which by emulation, and which not at all, from the
lines "tiers: native: ...; emulated: ...; not run: ..." that kernel tests print.

usage: report_tiers.py LOG...   (ctest's LastTest.log; one that does not exist says nothing)
"""
import os
import re
import sys

HOW = ["native", "emulated", "not run"]


def main(paths):
    best = {}
    for path in paths:
        if not os.path.exists(path):
            continue
        with open(path, errors="replace") as log:
            lines = [line for line in log if line.startswith("tiers: ")]
        for line in lines:
            for how, names in re.findall(r"(native|emulated|not run): ?([a-z0-9 ]*)", line):
                for name in names.split():
                    best[name] = min(best.get(name, len(HOW)), HOW.index(how))
    if not best:
        sys.exit("report_tiers: no kernel test said which tiers it ran")
    print("tiers tested: " + "; ".join(f"{how}: {' '.join(n for n in best if best[n] == i) or 'none'}" for i, how in enumerate(HOW)))


main(sys.argv[1:])
