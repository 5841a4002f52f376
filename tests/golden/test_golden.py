"""Accuracy against references that share no code with this program: the default model against a float64 forward pass
(smollm2.bin, see README.md), and a Qwen 3 model with random BF16 weights against a float64 one written here."""

import json
import math
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from cluster import BIN, MODEL, Server  # noqa: E402


def score(model, lists, top, *flags):
    run = subprocess.run([BIN, "score", "-m", str(model), "--top", str(top), *flags], input=json.dumps(lists), capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return lines[:-1], lines[-1]


def read_golden():
    data, at = (HERE / "smollm2.bin").read_bytes(), 8
    n_prompts, n_top = struct.unpack_from("<II", data, at)
    at += 8
    for _ in range(n_prompts):
        (length,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        arrays = []
        for kind, count in (("<u4", n), ("<f4", n - 1), ("<u2", n * n_top), ("<f4", n * n_top)):
            arrays.append(np.frombuffer(data, kind, count, at))
            at += arrays[-1].nbytes
        ids, following, top, logprob = arrays
        yield name, ids, following, top.reshape(n, n_top).astype(int), logprob.reshape(n, n_top).astype(float)


def divergences(top, logprob, got):
    """KL of each position over the reference's likeliest ids and one bucket for all the rest."""
    out = []
    for position in range(len(top)):
        ours = dict(zip(got["top"][position], got["logprob"][position]))
        floor = min(got["logprob"][position])
        p = np.exp(logprob[position])
        q = np.exp([ours.get(int(i), floor) for i in top[position]])
        rest_p, rest_q = max(1 - p.sum(), 1e-12), max(1 - q.sum(), 1e-12)
        out.append(float((p * np.log(p / q)).sum() + rest_p * math.log(rest_p / rest_q)))
    return out


def test_default_model():
    golden = list(read_golden())
    got, end = score(MODEL, [ids.tolist() for _, ids, *_ in golden], 256)
    kl, agree, n = [], 0, 0
    for (name, ids, following, top, logprob), ours in zip(golden, got):
        kl += divergences(top, logprob, ours)
        agree += sum(int(top[i][0]) == ours["top"][i][0] for i in range(len(top)))
        n += len(top)
        assert len(ours["next"]) == len(ids) - 1
    print(f"{n} positions: mean KL {np.mean(kl):.5f}, top-1 {agree / n:.4f}, perplexity {end['perplexity']:.3f}")
    assert np.mean(kl) <= 0.0017
    assert agree / n >= 0.968


def test_ids_of_every_prompt():
    """Templates, tokenizer and special tokens: ids as Jinja2 and Hugging Face's tokenizers give them."""
    server = Server("-t", "1", "-np", "1")
    for prompt in json.loads((HERE / "prompts.json").read_text()):
        if "messages" in prompt:
            body = {"messages": prompt["messages"], "add_generation_prompt": True}
        else:
            body = {"prompt": prompt["text"]}
        assert json.loads(server.post("/tokenize", body))["tokens"] == prompt["ids"], prompt["name"]
    server.stop()


# ---- Qwen 3: its own geometry, q/k norms, half-split rope, BF16 ----

SHAPE = dict(n_layers=4, d=256, ff=512, n_heads=4, n_kv=2, hd=64, n_vocab=1024, theta=1e6, eps=1e-6)


def bf16(a):
    u = np.ascontiguousarray(a, np.float32).view(np.uint32)
    return ((u + (0x7FFF + ((u >> 16) & 1))) >> 16).astype(np.uint16)


def string(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def write_qwen3(path, rng):
    c = SHAPE
    tensors, reference = [], {}

    def matrix(name, rows, k, scale):
        raw = bf16(rng.standard_normal((rows, k)) * scale)
        tensors.append((name, (k, rows), 30, raw.tobytes()))
        reference[name] = (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    def norm(name, n):
        v = (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
        tensors.append((name, (n,), 0, v.tobytes()))
        reference[name] = v.astype(np.float64)

    matrix("token_embd.weight", c["n_vocab"], c["d"], 0.5)
    norm("output_norm.weight", c["d"])
    for layer in range(c["n_layers"]):
        p = f"blk.{layer}."
        for name, rows, k in (("attn_q", c["n_heads"] * c["hd"], c["d"]), ("attn_k", c["n_kv"] * c["hd"], c["d"]),
                              ("attn_v", c["n_kv"] * c["hd"], c["d"]), ("attn_output", c["d"], c["n_heads"] * c["hd"]),
                              ("ffn_gate", c["ff"], c["d"]), ("ffn_up", c["ff"], c["d"]), ("ffn_down", c["d"], c["ff"])):
            matrix(f"{p}{name}.weight", rows, k, 1 / math.sqrt(k))
        for name, n in (("attn_norm", c["d"]), ("ffn_norm", c["d"]), ("attn_q_norm", c["hd"]), ("attn_k_norm", c["hd"])):
            norm(f"{p}{name}.weight", n)
    u32 = lambda key, v: string("qwen3." + key) + struct.pack("<II", 4, v)  # noqa: E731
    f32 = lambda key, v: string("qwen3." + key) + struct.pack("<If", 6, v)  # noqa: E731
    bytes_of = []
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in visible]
    for b in range(256):
        bytes_of.append(chr(b) if b in visible else chr(256 + others.index(b)))
    tokens = bytes_of + [f"\u0120w{i}" for i in range(256, c["n_vocab"])]
    strings = lambda key, items: string(key) + struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))  # noqa: E731
    meta = [string("general.architecture") + struct.pack("<I", 8) + string("qwen3"), u32("block_count", c["n_layers"]),
            u32("context_length", 4096), u32("embedding_length", c["d"]), u32("feed_forward_length", c["ff"]),
            u32("attention.head_count", c["n_heads"]), u32("attention.head_count_kv", c["n_kv"]), u32("attention.key_length", c["hd"]),
            u32("attention.value_length", c["hd"]), f32("attention.layer_norm_rms_epsilon", c["eps"]), f32("rope.freq_base", c["theta"]),
            string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("gpt2"),
            string("tokenizer.ggml.pre") + struct.pack("<I", 8) + string("qwen2"), strings("tokenizer.ggml.tokens", tokens),
            strings("tokenizer.ggml.merges", ["\u0120 w"])]
    infos, data = [], b""
    for name, dims, kind, raw in tensors:
        data += b"\0" * (-len(data) % 32)
        infos.append(string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, len(data)))
        data += raw
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(meta) + b"".join(infos)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return reference


def forward(w, ids):
    """Qwen 3 in float64, straight from its definition."""
    c, n = SHAPE, len(ids)
    rms = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + c["eps"]) * g  # noqa: E731
    half = c["hd"] // 2
    angle = np.arange(n)[:, None] * c["theta"] ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rope(x):
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["token_embd.weight"][ids]
    mask = np.triu(np.full((n, n), -np.inf), 1)
    for layer in range(c["n_layers"]):
        g = lambda name: w[f"blk.{layer}.{name}.weight"]  # noqa: E731
        h = rms(x, g("attn_norm"))
        q = rope(rms((h @ g("attn_q").T).reshape(n, c["n_heads"], c["hd"]), g("attn_q_norm")))
        k = rope(rms((h @ g("attn_k").T).reshape(n, c["n_kv"], c["hd"]), g("attn_k_norm")))
        v = (h @ g("attn_v").T).reshape(n, c["n_kv"], c["hd"])
        out = np.empty((n, c["n_heads"], c["hd"]))
        for head in range(c["n_heads"]):
            kv = head // (c["n_heads"] // c["n_kv"])
            s = q[:, head] @ k[:, kv].T / math.sqrt(c["hd"]) + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
        x = x + out.reshape(n, -1) @ g("attn_output").T
        h = rms(x, g("ffn_norm"))
        gate = h @ g("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ g("ffn_up").T)) @ g("ffn_down").T
    z = rms(x, w["output_norm.weight"]) @ w["token_embd.weight"].T
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def test_qwen3_bf16(tmp_path):
    rng = np.random.default_rng(42)
    weights = write_qwen3(tmp_path / "qwen3.gguf", rng)
    lists = [rng.integers(0, SHAPE["n_vocab"], n).tolist() for n in (1, 40, 300)]
    got, _ = score(tmp_path / "qwen3.gguf", lists, SHAPE["n_vocab"])
    kl, agree, n = [], 0, 0
    for ids, ours in zip(lists, got):
        expected = forward(weights, ids)
        for position, row in enumerate(expected):
            q = np.empty(SHAPE["n_vocab"])
            q[ours["top"][position]] = ours["logprob"][position]
            kl.append(float((np.exp(row) * (row - q)).sum()))
            agree += int(row.argmax()) == ours["top"][position][0]
            n += 1
    print(f"{n} positions: mean KL {np.mean(kl):.2e}, largest {max(kl):.2e}, top-1 {agree / n:.4f}")
    assert np.mean(kl) < 2e-5 and agree / n > 0.99
