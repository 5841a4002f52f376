#!/usr/bin/env python3
"""llama.cpp's speed on a file through its C interface (package llama-cpp-python, built for this machine): one JSON object,
test name to tokens per second. pp N: N prompt tokens at once; tg N @ d: N single-token steps behind d tokens; tg N @ d x B:
B sequences stepped together. Names and work are those of `baton bench`."""

import argparse
import ctypes
import json
import statistics
import time

import llama_cpp as L


class Session:
    def __init__(self, path, threads):
        self.callback = L.llama_log_callback(lambda *_: None)
        L.llama_log_set(self.callback, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.batch = L.llama_batch_init(2048, 0, 1)
        self.threads, self.random, self.context = threads, 12345, None

    def open(self, sequences, tokens_each):
        if self.context:
            L.llama_free(self.context)
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = sequences * ((tokens_each + 255) // 256 * 256), 2048, 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self.threads
        self.context = L.llama_init_from_model(self.model, params)
        self.memory = L.llama_get_memory(self.context)

    def token(self):
        self.random = (self.random * 1103515245 + 12345) & 0xFFFFFFFF
        return 3 + (self.random >> 8) % (self.n_vocab - 4)

    def step(self, rows):
        """rows: (sequence, position, whether its logits are wanted)"""
        self.batch.n_tokens = len(rows)
        for i, (sequence, position, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = self.token(), position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, sequence, wanted
        if L.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")
        L.llama_synchronize(self.context)

    def fill(self, sequence, n):
        for first in range(0, n, 2048):
            m = min(2048, n - first)
            self.step([(sequence, first + i, i == m - 1) for i in range(m)])

    def prefill(self, n, repeats):
        self.open(1, n)
        self.fill(0, min(n, 64))
        speeds = []
        for _ in range(repeats):
            L.llama_memory_clear(self.memory, True)
            start = time.perf_counter()
            self.fill(0, n)
            speeds.append(n / (time.perf_counter() - start))
        return statistics.median(speeds)

    def decode(self, n, depth, sequences, repeats):
        self.open(sequences, depth + n)
        for s in range(sequences):
            self.fill(s, depth)
        speeds = []
        for r in range(repeats + 1):
            for s in range(sequences):
                L.llama_memory_seq_rm(self.memory, s, depth, -1)
            steps = n if r else min(n, 8)
            start = time.perf_counter()
            for i in range(steps):
                self.step([(s, depth + i, True) for s in range(sequences)])
            if r:
                speeds.append(n * sequences / (time.perf_counter() - start))
        return statistics.median(speeds)


def numbers(text):
    return [int(x) for x in text.split(",") if x]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("-t", type=int, default=1)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-p", default="512", help="prompt lengths")
    parser.add_argument("-n", default="128:0:1", help="steps:depth:sequences, several with commas")
    a = parser.parse_args()
    session, speeds = Session(a.model, a.t), {}
    for n in numbers(a.p):
        speeds[f"pp{n}"] = session.prefill(n, a.r)
    for test in filter(None, a.n.split(",")):
        n, depth, sequences = (int(x) for x in test.split(":"))
        name = f"tg{n}" + (f" @ d{depth}" if depth else "") + (f" x {sequences}" if sequences > 1 else "")
        speeds[name] = session.decode(n, depth, sequences, a.r)
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
