#!/usr/bin/env python3
"""Holds a static library against the numerics contract: of libm's functions it may call fmaf, sqrtf and rintf alone, for
the others' results differ between hosts (docs/EXACTNESS.md, 1).

usage: check_symbols.py LIBRARY.a [NM]
"""
import ctypes.util
import re
import subprocess
import sys

ALLOWED = {"fmaf", "sqrtf", "rintf"}


def symbols(nm, arguments):
    lines = subprocess.run([nm, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split() for line in lines if line.strip()]


def libm_path(library):
    """libm as the loader finds it for a program of this machine."""
    for line in subprocess.run(["ldd", sys.executable], capture_output=True, text=True).stdout.splitlines():
        m = re.match(r"\s*libm\.so\S* => (\S+)", line)
        if m:
            return m.group(1)
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    m = re.search(r"libm\.so\.6 .*=> (\S+)", found)
    return m.group(1) if m else ctypes.util.find_library("m")


def main(library, nm="nm"):
    exported = {w[-1].split("@")[0] for w in symbols(nm, ["-D", "--defined-only", libm_path(library)])}
    undefined = {w[-1] for w in symbols(nm, ["-u", library]) if len(w) == 2 and w[0] == "U"}
    if len(exported) < 100 or not undefined:
        sys.exit("check_symbols: cannot read libm's or the library's symbols")
    wrong = sorted((undefined & exported) - ALLOWED)
    if wrong:
        sys.exit(f"check_symbols: {library} calls {', '.join(wrong)}; of libm only {', '.join(sorted(ALLOWED))} may be used")
    print(f"check_symbols: of libm only {', '.join(sorted(undefined & exported)) or 'nothing'} is used")


main(*sys.argv[1:])
