#!/usr/bin/env python3
"""Holds every #include in src/ against src/DEPS, and file sizes against the house rules. Exit 1 on a breach."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
src = root / "src"
allowed = {}
for line in (src / "DEPS").read_text().splitlines():
    line = line.split("#")[0].strip()
    if line:
        room, rest = line.split(":")
        allowed[room.strip()] = set(rest.split()) | {room.strip()}

faults = []
for path in sorted(src.rglob("*.[ch]")):
    room = path.relative_to(src).parts[0]
    text = path.read_text()
    if room not in allowed:
        faults.append(f"{path.relative_to(root)}: room {room} is not in src/DEPS")
        continue
    for number, line in enumerate(text.splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not m:
            continue
        target = m.group(1).split("/")[0]
        where = f"{path.relative_to(root)}:{number}"
        if "/" not in m.group(1):
            faults.append(f'{where}: includes are written "room/file.h"')
        elif target not in allowed[room]:
            faults.append(f"{where}: {room} may not include {target}")
        elif target != room and m.group(1).endswith("internal.h"):
            faults.append(f"{where}: {m.group(1)} is private to {target}")
    if text.count("\n") > 1000 and "table of data" not in text:
        faults.append(f"{path.relative_to(root)}: over 1,000 lines")
print("\n".join(faults) if faults else f"check_deps: {sum(1 for _ in src.rglob('*.[ch]'))} files follow src/DEPS")
sys.exit(bool(faults))
