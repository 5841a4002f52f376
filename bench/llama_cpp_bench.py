#!/usr/bin/env python3
"""llama.cpp's speed on the same file through its C interface (package llama-cpp-python, built for this machine): one JSON
object, test name to tokens per second. pp N: N prompt tokens at once; tg N: N single-token steps."""

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
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, 2048, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = L.llama_init_from_model(self.model, params)
        self.memory = L.llama_get_memory(self.context)
        self.batch = L.llama_batch_init(2048, 0, 1)
        self.random = 12345

    def token(self):
        self.random = (self.random * 1103515245 + 12345) & 0xFFFFFFFF
        return 3 + (self.random >> 8) % (self.n_vocab - 4)

    def step(self, first, n):
        self.batch.n_tokens = n
        for i in range(n):
            self.batch.token[i], self.batch.pos[i] = self.token(), first + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, i == n - 1
        if L.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")
        L.llama_synchronize(self.context)

    def measure(self, n, decode, repeats):
        speeds = []
        for r in range(repeats + 1):
            L.llama_memory_clear(self.memory, True)
            start = time.perf_counter()
            if decode:
                for i in range(n):
                    self.step(i, 1)
            else:
                for first in range(0, n, 2048):
                    self.step(first, min(2048, n - first))
            if r:
                speeds.append(n / (time.perf_counter() - start))
        return statistics.median(speeds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("-t", type=int, default=1)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("-r", type=int, default=3)
    a = parser.parse_args()
    session = Session(a.model, a.t)
    print(json.dumps({f"pp{a.p}": session.measure(a.p, False, a.r), f"tg{a.n}": session.measure(a.n, True, a.r)}))


if __name__ == "__main__":
    main()
