"""A client of the node-to-node protocol, written from docs/WIRE.md alone, with the standard library only.

It stands in for a router: dials a prefill and a decode node, sends serve.prefill_request to the one, takes the first token
from it and the continuation from the other, and puts them together by number.

    python3 wire_client.py PREFILL_ADDRESS DECODE_ADDRESS ID [ID ...]
"""

import json
import math
import os
import random
import socket
import struct
import sys
import threading
import time

HELLO, REFUSE, PING, PONG, NODE_STATS = 1, 2, 3, 4, 5
PREFILL_REQUEST, RESULT, CREDIT, CANCEL = 16, 24, 25, 26


class WireError(Exception):
    pass


class Refused(WireError):
    def __init__(self, notice):
        super().__init__(f"{notice.get('reason')}: {notice.get('message')}")
        self.reason = notice.get("reason")


def hex64(n):
    return f"{n:016x}"


def frame(kind, members, tail=b""):
    text = json.dumps(members).encode()
    return struct.pack("<IHHI", 8 + len(text) + len(tail), kind, 0, len(text)) + text + tail


def _crc_row(i):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    return i


_CRC = [_crc_row(i) for i in range(256)]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def seal(data, number):
    return struct.pack("<I", crc32c(data) ^ crc32c(struct.pack("<Q", number)))


def sealed(data, number):
    """A frame as it goes over a connection, as that connection's frame of this number."""
    return seal(data[:12], number) + data + seal(data, number)


def u32s(values):
    return struct.pack(f"<{len(values)}I", *values)


class Link:
    """A control connection whose hello is done. Pings are answered by its reading thread; everything else goes to
    on_frame(link, kind, members, tail), and the end of it to on_lost(link)."""

    def __init__(self, address, hello, on_frame, on_lost, timeout=30):
        host, port = address.rsplit(":", 1)
        self.address, self.on_frame, self.on_lost = address, on_frame, on_lost
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock, self.buffer, self.lost = threading.Lock(), b"", False
        self.n_sent = self.n_read = 0  # frames: the seals count them
        self.send(HELLO, hello)
        kind, members, _ = self.read()
        if kind == REFUSE:
            self.socket.close()
            raise Refused(members)
        if kind != HELLO:
            self.socket.close()
            raise WireError(f"a frame of type {kind} instead of a hello")
        self.hello, self.node_id = members, members["node_id"]
        self.stats = {}
        self.socket.settimeout(None)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def send(self, kind, members, tail=b""):
        self.send_bytes(frame(kind, members, tail))

    def send_bytes(self, data):
        with self.lock:
            self.socket.sendall(sealed(data, self.n_sent))
            self.n_sent += 1

    def read_exactly(self, n):
        while len(self.buffer) < n:
            data = self.socket.recv(1 << 16)
            if not data:
                raise WireError("the node closed the connection")
            self.buffer += data
        out, self.buffer = self.buffer[:n], self.buffer[n:]
        return out

    def read(self):
        before, header = self.read_exactly(4), self.read_exactly(12)
        length, kind, zero, n = struct.unpack("<IHHI", header)
        if zero or not 8 <= length <= 1 << 20 or n > length - 8:
            raise WireError("broken framing")
        body = self.read_exactly(length - 8)
        if before != seal(header, self.n_read) or self.read_exactly(4) != seal(header + body, self.n_read):
            raise WireError("broken seal")
        self.n_read += 1
        return kind, json.loads(body[:n]), body[n:]

    def run(self):
        try:
            while True:
                kind, members, tail = self.read()
                if kind in (PING, PONG, NODE_STATS):
                    self.stats = members
                if kind == PING:
                    self.send(PONG, {"number": members["number"], "sent_at_us": members["sent_at_us"]})
                elif kind not in (PONG, NODE_STATS):
                    self.on_frame(self, kind, members, tail)
        except (OSError, WireError):
            pass
        self.lost = True
        self.on_lost(self)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join(10)
        self.socket.close()


class Tail:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, letter, n):
        out = struct.unpack_from(f"<{n}{letter}", self.data, self.at)
        self.at += 4 * n
        return list(out)

    def rows(self, entry, n):
        if "n_top" not in entry:
            return None
        top = entry["n_top"]
        values, ids, top_values = self.take("f", n), self.take("I", n * top), self.take("f", n * top)
        return [(values[i], list(zip(ids[i * top:(i + 1) * top], top_values[i * top:(i + 1) * top]))) for i in range(n)]


class Stream:
    """One request's answer as it grows."""

    def __init__(self, client, key, attempt, n_generated):
        self.client, self.key, self.attempt = client, key, attempt
        self.ids = {}          # by number
        self.logprobs = {}     # by number: (value, [(id, value)])
        self.prompt_rows = {}  # by position
        self.text = {}         # by number of the first id that released it
        self.phases, self.opened, self.frames = [], [], 0
        self.finish = self.error = self.message = self.generated = self.cached = None
        self.n_generated = n_generated
        self.over = threading.Event()
        self.changed = threading.Condition()

    def take(self, link, entry, tail):
        phase = entry["phase"]
        with self.changed:
            self.phases.append((link.node_id, phase))
            self.frames += 1
            if phase == "prompt_logprobs":
                n, start = entry.get("n_rows", 0), entry.get("start_position", 0)
                for i, row in enumerate(tail.rows(entry, n) or []):
                    self.prompt_rows[start + i] = row
            else:
                n, start = entry.get("n_token_ids", 0), entry.get("start_sequence", 0)
                ids = tail.take("I", n)
                rows = tail.rows(entry, n)
                for i, token in enumerate(ids):
                    known = self.ids.setdefault(start + i, token)
                    if known != token:
                        self.fail("inexact", f"token {start + i} is {known} and {token}")
                    if rows:
                        if self.logprobs.setdefault(start + i, rows[i]) != rows[i]:
                            self.fail("inexact", f"the log-probabilities of token {start + i} differ")
                if entry.get("tokens"):
                    self.text[start] = entry["tokens"]
            if phase == "opened":
                self.opened.append(entry["decode_node"])
            if "cached_tokens" in entry:
                self.cached = entry["cached_tokens"]
            if "error" in entry:
                self.fail(entry["error"], entry.get("message", ""))
            elif entry.get("done"):
                self.finish, self.generated = entry.get("finish_reason"), entry["generated_tokens"]
                self.over.set()
            self.changed.notify_all()

    def fail(self, error, message):
        if self.error is None:
            self.error, self.message = error, message
        self.over.set()

    def wait(self, seconds=180):
        if not self.over.wait(seconds):
            raise AssertionError(f"no end in {seconds} s; {len(self.ids)} tokens, {self.phases[-5:]}")
        return self

    def wait_tokens(self, n, seconds=180):
        end = time.monotonic() + seconds
        with self.changed:
            while len(self.ids) < n and not self.over.is_set():
                assert self.changed.wait(end - time.monotonic()), f"{len(self.ids)} tokens in {seconds} s"

    def all_ids(self):
        first = self.n_generated
        assert sorted(self.ids) == list(range(first, first + len(self.ids))), "a gap"
        return [self.ids[first + i] for i in range(len(self.ids))]

    def all_text(self):
        return "".join(self.text[k] for k in sorted(self.text))

    def cancel(self):
        for link in list(self.client.links.values()):
            try:
                link.send(CANCEL, {"key": self.key, "attempt": self.attempt})
            except OSError:
                pass


class Client:
    def __init__(self, node_id=None, epoch=None):
        self.node_id = node_id or f"client-{os.getpid()}-{random.getrandbits(32):08x}"
        self.epoch = random.getrandbits(64) if epoch is None else epoch
        self.links, self.streams = {}, {}
        self.number, self.lock = 0, threading.Lock()
        self.strays = 0

    def dial(self, address, expect_role=None, **changed):
        hello = {"version_min": 1, "version_max": 1, "node_id": self.node_id, "epoch": hex64(self.epoch), "role": "client",
                 "connection": "control", "link": hex64(random.getrandbits(63) + 1)}
        if expect_role:
            hello["expect_role"] = expect_role
        hello.update(changed)
        link = Link(address, hello, self.on_frame, self.on_lost)
        self.links[link.node_id] = link
        return link

    def on_frame(self, link, kind, members, tail):
        if kind != RESULT:
            return
        rest = Tail(tail)
        for entry in members["entries"]:
            key = entry["key"]
            stream = self.streams.get((key["number"], entry.get("attempt", 1)))
            if stream is None or key["epoch"] != hex64(self.epoch):
                self.strays += 1
                stream = Stream(self, key, 0, 0)
            stream.take(link, entry, rest)
        assert rest.at == len(tail)

    def on_lost(self, link):
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]

    def request(self, prefill, prompt, targets=None, max_tokens=16, generated=(), number=None, attempt=1, want_text=True,
                logit_bias=(), reply_to=None, sampling=None, **resume):
        with self.lock:
            if number is None:
                self.number += 1
                number = self.number
        key = {"origin": self.node_id, "epoch": hex64(self.epoch), "number": hex64(number)}
        stream = self.streams[hex64(number), attempt] = Stream(self, key, attempt, len(generated))
        members = {"key": key, "attempt": attempt, "request_id": f"wire-{number}", "reply_to": reply_to or self.node_id,
                   "want_text": want_text,
                   "resume": {"n_prompt": len(prompt), "n_generated": len(generated), "sampling": sampling or {},
                              "n_logit_bias": len(logit_bias), "max_tokens": max_tokens, **resume}}
        if targets is not None:
            members["decode_targets"] = targets
        tail = u32s(prompt) + u32s(generated) + b"".join(struct.pack("<If", i, b) for i, b in logit_bias)
        prefill.send(PREFILL_REQUEST, members, tail)
        return stream

    def close(self):
        for link in list(self.links.values()):
            link.close()


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__.strip())
    client = Client()
    prefill, decode = client.dial(sys.argv[1], "prefill"), client.dial(sys.argv[2], "decode")
    stream = client.request(prefill, [int(i) for i in sys.argv[3:]], [decode.node_id], max_tokens=32, n_logprobs=1).wait()
    if stream.error:
        sys.exit(f"{stream.error}: {stream.message}")
    print(stream.all_text())
    print(stream.all_ids(), stream.finish, [round(math.exp(v), 3) for v, _ in stream.logprobs.values()])
    client.close()


if __name__ == "__main__":
    main()
