"""A client that reads slowly, or not at all for a while, costs nobody else anything: its request is parked."""

import json
import socket

import pytest

import canonical
from cluster import Cluster, Server, wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Count."}], "temperature": 0, "max_tokens": 1500, "ignore_eos": True, "stream": True,
        "logprobs": True, "top_logprobs": 5}


def slow_client(url):
    """Sends the request and reads nothing: its socket takes as little as the kernel allows."""
    host, port = url.split("//")[1].split(":")
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((host, int(port)))
    body = json.dumps(BODY).encode()
    s.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
    return s


def read_all(s):
    s.settimeout(180)
    data = b""
    while True:
        piece = s.recv(1 << 16)
        if not piece:
            return data.split(b"\r\n\r\n", 1)[1]
        data += piece


@pytest.mark.parametrize("shape", ["hybrid", "split"])
def test_a_reader_that_pauses_is_parked(shape):
    place = Server("-t", 2) if shape == "hybrid" else Cluster()
    worker = place if shape == "hybrid" else place.decode[0]
    s = slow_client(place.url)
    wait_until(lambda: worker.stats()["engine"]["parked"] == 1, "parked")
    assert worker.stats()["pages"]["held"] == 0 and worker.stats()["engine"]["running"] == 0
    # others are served meanwhile
    other = {**BODY, "stream": False, "max_tokens": 20}
    assert json.loads(place.post(CHAT, other))["usage"]["completion_tokens"] == 20
    got = canonical.stream(read_all(s))
    s.close()
    assert worker.stats()["engine"]["parkings"] >= 1
    assert canonical.stream(place.post(CHAT, BODY)) == got
    place.check_no_leak()
    place.stop()
