#!/usr/bin/env python3
"""Makes GGUF files of real shapes with random weights, for measuring speed without downloading anything: one BF16 file, and
from it other types through llama.cpp's own quantiser (package llama-cpp-python).

usage: make_model.py SHAPE TYPE[,TYPE...] FOLDER      for example: make_model.py qwen3-0.6b BF16,Q8_0,Q4_K_M models
Needs numpy; types other than BF16 need llama_cpp. Files that are there already stay as they are."""

import argparse
import ctypes
import os
import pathlib
import struct

import numpy as np

SHAPES = {
    "qwen3-0.6b": dict(family="qwen3", layers=28, width=1024, ff=3072, heads=16, kv_heads=8, head=128, vocab=151936,
                       rope_base=1e6, epsilon=1e-6, context=40960, head_norms=True, pre="qwen2", bos=151643, eos=151645),
    "llama-3.2-1b": dict(family="llama", layers=16, width=2048, ff=8192, heads=32, kv_heads=8, head=64, vocab=128256,
                         rope_base=5e5, epsilon=1e-5, context=131072, head_norms=False, pre="llama-bpe", bos=128000, eos=128009),
    "smollm2-135m": dict(family="llama", layers=30, width=576, ff=1536, heads=9, kv_heads=3, head=64, vocab=49152,
                         rope_base=1e5, epsilon=1e-5, context=8192, head_norms=False, pre="smollm", bos=1, eos=2),
}
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "BF16": 32}
ALIGNMENT = 32
TENSOR_F32, TENSOR_BF16 = 0, 30


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    """A metadata value with its type in front."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind, items = (8, map(text, v)) if isinstance(v[0], str) else (5, (struct.pack("<i", i) for i in v))
    return struct.pack("<IIQ", 9, kind, len(v)) + b"".join(items)


def byte_letters():
    """The 256 letters by which byte-level BPE writes bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def vocabulary(c):
    """Every byte from id 16 on, the two ends where the family has them, and words that nothing merges into."""
    tokens, kinds, letters = [], [], byte_letters()
    for i in range(c["vocab"]):
        special = {c["bos"]: "<|begin|>", c["eos"]: "<|im_end|>"}.get(i)
        tokens.append(special or (letters[i - 16] if 16 <= i < 272 else f"\u0120word{i}"))
        kinds.append(3 if special else 1)
    return tokens, kinds


def metadata(name, c):
    f = c["family"]
    tokens, kinds = vocabulary(c)
    m = {"general.architecture": f, "general.name": f"random {name}", "general.file_type": FILE_TYPES["BF16"],
         f"{f}.block_count": c["layers"], f"{f}.context_length": c["context"], f"{f}.embedding_length": c["width"],
         f"{f}.feed_forward_length": c["ff"], f"{f}.attention.head_count": c["heads"],
         f"{f}.attention.head_count_kv": c["kv_heads"], f"{f}.attention.key_length": c["head"],
         f"{f}.attention.value_length": c["head"], f"{f}.attention.layer_norm_rms_epsilon": c["epsilon"],
         f"{f}.rope.freq_base": c["rope_base"], f"{f}.rope.dimension_count": c["head"], f"{f}.vocab_size": c["vocab"],
         "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": c["pre"], "tokenizer.ggml.tokens": tokens,
         "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": ["\u0120 w"],
         "tokenizer.ggml.bos_token_id": c["bos"], "tokenizer.ggml.eos_token_id": c["eos"],
         "tokenizer.ggml.add_bos_token": False}
    return b"".join(text(k) + value(v) for k, v in m.items()), len(m)


def tensors(c):
    """(name, rows or None, columns): a vector has no rows. The output shares the embedding's matrix."""
    d, ff, q, kv = c["width"], c["ff"], c["heads"] * c["head"], c["kv_heads"] * c["head"]
    yield "token_embd.weight", c["vocab"], d
    yield "output_norm.weight", None, d
    for i in range(c["layers"]):
        p = f"blk.{i}."
        for n, rows, columns in (("attn_norm", None, d), ("attn_q", q, d), ("attn_k", kv, d), ("attn_v", kv, d),
                                 ("attn_output", d, q), ("ffn_norm", None, d), ("ffn_gate", ff, d), ("ffn_up", ff, d),
                                 ("ffn_down", d, ff)):
            yield f"{p}{n}.weight", rows, columns
        if c["head_norms"]:
            yield f"{p}attn_q_norm.weight", None, c["head"]
            yield f"{p}attn_k_norm.weight", None, c["head"]


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + (0x7FFF + ((u >> 16) & 1))) >> 16).astype(np.uint16).tobytes()


def write_bf16(name, path):
    c, random = SHAPES[name], np.random.default_rng(7)
    meta, n_meta = metadata(name, c)
    listed, infos, at = list(tensors(c)), b"", 0
    for tensor, rows, columns in listed:
        dims = (columns,) if rows is None else (columns, rows)
        kind = TENSOR_F32 if rows is None else TENSOR_BF16
        infos += text(tensor) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", n) for n in dims) + struct.pack("<IQ", kind, at)
        n_bytes = columns * 4 if rows is None else rows * columns * 2
        at += (n_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    with open(f"{path}.part", "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), n_meta) + meta + infos)
        for _, rows, columns in listed:
            f.write(b"\0" * (-f.tell() % ALIGNMENT))
            if rows is None:
                f.write((1 + 0.1 * random.standard_normal(columns)).astype(np.float32).tobytes())
            else:
                f.write(bf16(random.standard_normal((rows, columns), np.float32) * np.float32(columns ** -0.5)))
        f.write(b"\0" * (-f.tell() % ALIGNMENT))
    os.replace(f"{path}.part", path)


def quantise(source, kind, path):
    import llama_cpp as L

    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    params = L.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    if L.llama_model_quantize(str(source).encode(), f"{path}.part".encode(), ctypes.byref(params)):
        raise SystemExit(f"{source} could not be made {kind}")
    os.replace(f"{path}.part", path)


def make(shape, kind, folder):
    """The path of the file, which is made if it is not there."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source, path = folder / f"{shape}.BF16.gguf", folder / f"{shape}.{kind}.gguf"
    if not source.exists() and not path.exists():
        write_bf16(shape, source)
    if not path.exists():
        quantise(source, kind, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("types", help="of " + ", ".join(FILE_TYPES))
    parser.add_argument("folder")
    a = parser.parse_args()
    for kind in a.types.split(","):
        if kind not in FILE_TYPES:
            parser.error(f"type {kind}: {', '.join(FILE_TYPES)} are possible")
        print(make(a.shape, kind, a.folder), flush=True)


if __name__ == "__main__":
    main()
