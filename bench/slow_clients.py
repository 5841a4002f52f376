#!/usr/bin/env python3
"""What thousands of slow and idle connections cost one good client: its latencies with and without them, in turn in one run.

The crowd, a quarter each: connections that say nothing; heads that come a byte at a time; bodies that come a byte at a time;
readers that ask for something large and do not read it. It is renewed where the server ends it."""

import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import resource
import socket
import statistics
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))


class Slow:
    """One slow connection: connects, says what it has to say a byte at a time, never reads."""

    def __init__(self, kind, address):
        self.kind, self.address = kind, address
        self.open()

    def open(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(self.address)
        self.socket.setblocking(False)
        head = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
        self.rest = {
            "idle": b"",
            "head": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"y" * 4000,
            "body": b" " * 4000,
            "reader": b"",
        }[self.kind]
        if self.kind == "body":
            self.socket.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n")
        if self.kind == "reader":
            self.socket.send((head + b"\r\n") * 8)

    def tick(self):
        try:
            if self.rest:
                self.socket.send(self.rest[:1])
                self.rest = self.rest[1:]
            elif self.kind != "reader" and self.socket.recv(1) == b"":
                raise ConnectionError
        except BlockingIOError:
            pass
        except OSError:
            self.socket.close()
            self.open()


def crowd(address, n, ready, stop):
    os.nice(10)
    kinds = ("idle", "head", "body", "reader")
    slow = []
    for i in range(n):
        slow.append(Slow(kinds[i % 4], address))
        if i % 50 == 49:
            time.sleep(0.02)
    ready.set()
    at = 0
    while not stop.is_set():  # every connection says something each five seconds or so
        for _ in range(max(1, n // 100)):
            slow[at % n].tick()
            at += 1
        time.sleep(0.05)
    for s in slow:
        s.socket.close()


def good(address, rounds, n_tokens):
    """Latencies in ms of whole short answers, one after the other on one connection."""
    c = http.client.HTTPConnection(*address, timeout=120)
    out = []
    for i in range(rounds):
        body = json.dumps({"prompt": [1000 + i % 50, 7, 8, 9], "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True})
        start = time.perf_counter()
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        assert r.status == 200, data
        out.append((time.perf_counter() - start) * 1e3)
    c.close()
    return out


def p(values, q):
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def resident_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server, n=4000, rounds=3, requests=150, n_tokens=4):
    parts = urllib.parse.urlsplit(server.url)
    address = (parts.hostname, parts.port)
    quiet, loaded, grown, share = [], [], [], []
    good(address, 20, n_tokens)
    for _ in range(rounds):
        quiet += good(address, requests, n_tokens)
        before = resident_mib(server.pid)
        ready, stop = multiprocessing.Event(), multiprocessing.Event()
        process = multiprocessing.Process(target=crowd, args=(address, n, ready, stop), daemon=True)
        process.start()
        assert ready.wait(120)
        time.sleep(1)
        cpu, start = cpu_seconds(server.pid), time.monotonic()
        time.sleep(2)
        share.append((cpu_seconds(server.pid) - cpu) / (time.monotonic() - start))
        loaded += good(address, requests, n_tokens)
        grown.append(resident_mib(server.pid) - before)
        stop.set()
        process.join(60)
        time.sleep(1)
    return quiet, loaded, max(grown), max(share)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=150)
    a = parser.parse_args()
    os.environ["BATON_MODEL"] = a.model
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from cluster import Server

    server = Server("-t", "1", "--node-id", "hybrid-0")
    try:
        quiet, loaded, grown, share = measure(server, a.connections, a.rounds, a.requests)
        print(f"{a.connections} slow connections, {a.rounds} rounds of {a.requests} short answers with and without them, in ms")
        for name, values in (("quiet", quiet), ("crowd", loaded)):
            print(f"{name}: median {statistics.median(values):.2f}  p90 {p(values, .9):.2f}  p99 {p(values, .99):.2f}")
        print(f"ratio: median {statistics.median(loaded) / statistics.median(quiet):.3f}  p90 {p(loaded, .9) / p(quiet, .9):.3f}  "
              f"p99 {p(loaded, .99) / p(quiet, .99):.3f}; memory grew by {grown:.0f} MiB; the crowd alone takes {share:.1%} of a core")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
