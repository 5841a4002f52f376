"""A client that measures: any number of streamed answers in one thread, and when each of their tokens came."""

import json
import selectors
import socket
import time
import urllib.parse

MARK = b"data: {"


class Answer:
    """One streamed completion: n tokens behind ids. moments has one entry a token."""

    def __init__(self, url, ids, n, **fields):
        where = urllib.parse.urlsplit(url)
        body = {"prompt": [ids], "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0, **fields}
        text = json.dumps(body).encode()
        self.socket = socket.create_connection((where.hostname, where.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.started = time.perf_counter()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(text) + text)
        self.moments, self.ended, self.rest = [], False, b""

    def read(self):
        data = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if not data:
            self.close()
            return
        data = self.rest + data
        self.moments += [now] * data.count(MARK)
        keep = data.rfind(MARK)
        self.rest = data[-(len(MARK) - 1):] if keep < 0 else data[max(keep + len(MARK), len(data) - len(MARK) + 1):]

    def close(self):
        """Hangs up, if the answer has not ended."""
        if not self.ended:
            self.ended = True
            self.socket.close()

    @property
    def first_ms(self):
        return (self.moments[0] - self.started) * 1e3

    @property
    def second_ms(self):
        return (self.moments[1] - self.started) * 1e3

    @property
    def gaps_ms(self):
        return [(b - a) * 1e3 for a, b in zip(self.moments, self.moments[1:])]


class Streams:
    """Answers that are read together."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.n = 0

    def ask(self, *args, **fields):
        answer = Answer(*args, **fields)
        self.selector.register(answer.socket, selectors.EVENT_READ, answer)
        self.n += 1
        return answer

    def drop(self, answer):
        if not answer.ended:
            self.selector.unregister(answer.socket)
            self.n -= 1
            answer.close()

    def read_until(self, condition, seconds=300):
        end = time.perf_counter() + seconds
        while not condition():
            left = end - time.perf_counter()
            if left <= 0 or not self.n:
                raise RuntimeError("the answers stood still")
            for key, _ in self.selector.select(min(left, 0.05)):
                key.data.read()
                if key.data.ended:
                    self.selector.unregister(key.fileobj)
                    self.n -= 1

    def read_for(self, seconds):
        end = time.perf_counter() + seconds
        self.read_until(lambda: time.perf_counter() >= end)


def one(url, ids, n, **fields):
    """One answer, alone, whole."""
    streams = Streams()
    answer = streams.ask(url, ids, n, **fields)
    streams.read_until(lambda: answer.ended)
    if len(answer.moments) < 1:
        raise RuntimeError(f"no token came: {answer.rest!r}")
    return answer


def fresh_ids(n, seed):
    """A prompt of n ids that shares no page with another seed's."""
    return [1000 + (i * 37 + seed * 1009) % 40000 for i in range(n)]


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]


def cpu_seconds(pid):
    import os

    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
