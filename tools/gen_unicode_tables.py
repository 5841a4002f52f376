#!/usr/bin/env python3
"""Writes src/text/unicode_class_table.c and src/text/unicode_nfc_table.c.

The tables say what Hugging Face's `tokenizers` takes a code point for, found by asking it, so that ids do not depend on the
Unicode version of a library on the host: its regular expressions, its digit splitter and its normaliser each follow another
version. Needs the package `tokenizers` (0.23.3 was used); the files are data and are not run through
clang-format."""
import pathlib
import unicodedata

from tokenizers import Regex
from tokenizers.normalizers import NFC, NFD
from tokenizers.pre_tokenizers import Digits, Split

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ROOT = pathlib.Path(__file__).resolve().parent.parent / "src" / "text"


def members(pattern):
    """Code points that the regular expression matches."""
    split, out = Split(Regex(pattern), "removed"), set()
    for base in range(0, len(POINTS), 4096):
        part = POINTS[base : base + 4096]
        kept = set()
        for piece, _ in split.pre_tokenize_str("".join(map(chr, part))):
            kept.update(map(ord, piece))
        out.update(c for c in part if c not in kept)
    return out


def digits():
    split, out = Digits(individual_digits=True), set()
    for base in range(0, len(POINTS), 4096):
        text = "".join("aa" + chr(c) + "bb" for c in POINTS[base : base + 4096])
        out.update(ord(piece) for piece, _ in split.pre_tokenize_str(text) if len(piece) == 1)
    return out


def ranges(value_of):
    out = []
    for c in POINTS:
        v = value_of(c)
        if not v:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == v:
            out[-1][1] = c
        else:
            out.append([c, c, v])
    return out


def rows(items, width=100):
    line, out = "   ", []
    for item in items:
        if len(line) + 1 + len(item) + 1 > width:
            out.append(line)
            line = "   "
        line += " " + item + ","
    out.append(line)
    return "\n".join(out)


def write_classes():
    letter, number, space, digit = members(r"\p{L}"), members(r"\p{N}"), members(r"\s"), digits()

    def value(c):
        if c < 0x80:
            return None
        if c in letter:
            return "LETTER"
        if c in number:
            assert c in digit
            return "NUMBER"
        if c in space:
            return "SPACE"
        return "DIGIT" if c in digit else None

    found = ranges(value)
    text = "/* A table of data written by tools/gen_unicode_tables.py: what a code point beyond ASCII is to the pre-tokenizers. */\n"
    text += '/* clang-format off */\n#include "text/unicode.h"\n\n'
    for name in ("LETTER", "NUMBER", "SPACE", "DIGIT"):
        text += f"#define {name[0]} CHAR_{name}\n"
    text += "const struct unicode_class_range unicode_class_ranges[] = {\n"
    text += rows("{0x%x, 0x%x, %s}" % (a, b, v[0]) for a, b, v in found)
    text += "\n};\nconst uint32_t n_unicode_class_ranges = sizeof unicode_class_ranges / sizeof unicode_class_ranges[0];\n"
    (ROOT / "unicode_class_table.c").write_text(text)


def write_nfc():
    nfc, nfd = NFC(), NFD()
    ours = unicodedata.normalize

    def combining(c):
        ch, v = chr(c), unicodedata.combining(chr(c))
        if not v:
            return 0
        probes = ["b\u0301" + ch, "b" + ch + "\u0323", "b" + ch + "\u0334", "b" + ch + "\u0301\u0323"]
        return v if all(nfc.normalize_str(p) == ours("NFC", p) for p in probes) else 0

    classes = ranges(combining)
    decompositions, compositions = [], []
    for c in POINTS:
        mapping = unicodedata.decomposition(chr(c))
        if not mapping or mapping.startswith("<"):
            continue
        parts = [int(p, 16) for p in mapping.split()]
        if nfd.normalize_str(chr(c)) == chr(c):  # assigned after the normaliser's version of Unicode
            continue
        assert nfd.normalize_str(chr(c)) == ours("NFD", chr(c)) and nfc.normalize_str(chr(c)) == ours("NFC", chr(c))
        decompositions.append((c, parts[0], parts[1] if len(parts) > 1 else 0))
        if len(parts) == 2 and ours("NFC", chr(c)) == chr(c):
            assert nfc.normalize_str(chr(parts[0]) + chr(parts[1])) == chr(c)
            compositions.append((parts[0], parts[1], c))
    compositions.sort()
    text = "/* A table of data written by tools/gen_unicode_tables.py: canonical decomposition and composition (Hangul is computed). */\n"
    text += '/* clang-format off */\n#include "text/unicode.h"\n\nconst struct unicode_combining_range unicode_combining_ranges[] = {\n'
    text += rows("{0x%x, 0x%x, %d}" % tuple(r) for r in classes)
    text += "\n};\nconst uint32_t n_unicode_combining_ranges = sizeof unicode_combining_ranges / sizeof unicode_combining_ranges[0];\n\n"
    text += "const struct unicode_decomposition unicode_decompositions[] = {\n"
    text += rows("{0x%x, 0x%x, 0x%x}" % d for d in decompositions)
    text += "\n};\nconst uint32_t n_unicode_decompositions = sizeof unicode_decompositions / sizeof unicode_decompositions[0];\n\n"
    text += "const struct unicode_composition unicode_compositions[] = {\n"
    text += rows("{0x%x, 0x%x, 0x%x}" % d for d in compositions)
    text += "\n};\nconst uint32_t n_unicode_compositions = sizeof unicode_compositions / sizeof unicode_compositions[0];\n"
    (ROOT / "unicode_nfc_table.c").write_text(text)


if __name__ == "__main__":
    write_classes()
    write_nfc()
