#!/usr/bin/env python3
"""Holds docs/TOKEN.md against the code: every function it names must still exist in the file it names."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
faults, n = [], 0
for number, line in enumerate((root / "docs/TOKEN.md").read_text().splitlines(), 1):
    for function, path in re.findall(r"`(\w+)\(\)` in `([\w./]+)`", line):
        n += 1
        file = root / "src" / path
        if not file.exists():
            faults.append(f"docs/TOKEN.md:{number}: src/{path} does not exist")
        elif not re.search(rf"^[\w *]*\b{function}\(", file.read_text(), re.M):
            faults.append(f"docs/TOKEN.md:{number}: {function}() is not in src/{path}")
if n == 0:
    faults.append("docs/TOKEN.md names no function")
print("\n".join(faults) if faults else f"check_docs: {n} functions named in docs/TOKEN.md exist")
sys.exit(bool(faults))
