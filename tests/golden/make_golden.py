#!/usr/bin/env python3
"""Writes smollm2.bin from the golden set (prompts.json and logprobs.npz as its README describes them). Standard library only.

usage: make_golden.py FOLDER OUT

Little-endian: "BGOLD1\\0\\0", u32 n_prompts, u32 n_top; for each prompt u32 length of its name, the name, u32 n_positions,
then ids u32[n], next f32[n - 1] (log-probability of the following id), top u16[n][n_top], logprob f32[n][n_top].
"""
import json
import pathlib
import struct
import sys
import zipfile


def npy(data):
    """Header and raw bytes of a .npy member."""
    length = struct.unpack_from("<H", data, 8)[0]
    header = data[10 : 10 + length].decode()
    return header, data[10 + length :]


def main(folder, out):
    folder = pathlib.Path(folder)
    prompts = json.loads((folder / "prompts.json").read_text())
    archive = zipfile.ZipFile(folder / "logprobs.npz")
    blob = bytearray(b"BGOLD1\0\0" + struct.pack("<II", len(prompts), 64))
    for p in prompts:
        name, ids = p["name"].encode(), p["ids"]
        n = len(ids)
        top = npy(archive.read(p["name"] + ".top.npy"))
        logprob = npy(archive.read(p["name"] + ".logprob.npy"))
        following = npy(archive.read(p["name"] + ".next.npy"))
        assert "'<i4'" in top[0] and "'<f4'" in logprob[0] and "'<f4'" in following[0], (top[0], logprob[0])
        blob += struct.pack("<I", len(name)) + name + struct.pack("<I", n) + struct.pack(f"<{n}I", *ids)
        blob += following[1][: 4 * (n - 1)]
        blob += struct.pack(f"<{n * 64}H", *struct.unpack(f"<{n * 64}i", top[1][: n * 64 * 4]))
        blob += logprob[1][: n * 64 * 4]
    pathlib.Path(out).write_bytes(blob)


main(*sys.argv[1:3])
