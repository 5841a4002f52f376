"""The table of limits at its edges: what is at the edge is taken, one more is refused in words."""

import json

import pytest

PATH = "/v1/completions"


def nested(n):
    return "[" * n + "]" * n


def completion(**more):
    return json.dumps({"prompt": "Once", "max_tokens": 1, "temperature": 0, **more})


def with_raw(text):
    """A completion with a field that nothing reads."""
    return completion()[:-1] + ', "x": ' + text + "}"


# at the edge, beyond it, status, words
EDGES = {
    "depth": (lambda n: with_raw(nested(n - 1)), 64, 400, "nested deeper than 64"),
    # prompt, max_tokens, temperature and x are four, the object one, the array and its first value another two
    "values": (lambda n: with_raw("[0" + ",0" * (n - 6) + "]"), 1 << 20, 413, "more than 1048576 values"),
    "prompts": (lambda n: completion(prompt=["a"] * n), 128, 400, "128"),
    "stops": (lambda n: completion(stop=[f"stop {i}" for i in range(n)]), 64, 400, "at most 64"),
    "stop bytes": (lambda n: completion(stop="s" * n), 1024, 400, "1024"),
    "logit_bias": (lambda n: completion(logit_bias={str(i): 1 for i in range(n)}), 1024, 400, "1024"),
    "logprobs": (lambda n: completion(logprobs=n), 20, 400, "20"),
    "body": (lambda n: completion() + " " * (n - len(completion())), 32 << 20, 413, "33554432"),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_a_body(hybrid, name):
    make, edge, status, words = EDGES[name]
    got, _, data = hybrid.request("POST", PATH, make(edge))
    assert got == 200, data
    got, _, data = hybrid.request("POST", PATH, make(edge + 1))
    message = json.loads(data)["error"]["message"]
    assert got == status and words in message, data
    assert hybrid.request("POST", PATH, completion())[0] == 200


def test_far_beyond(hybrid):
    """Nothing is built of what is thrown away: memory stays."""
    def resident():
        with open(f"/proc/{hybrid.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024

    before = resident()
    for text in ("[" + "0," * ((16 << 20) - 200) + "0]", nested((16 << 20) - 200), '{"a":' * (5 << 20)):
        got, _, data = hybrid.request("POST", PATH, with_raw(text))
        assert got in (400, 413), data
    assert resident() - before < 300


def head_of(n_headers=0, n_bytes=0):
    headers = {f"x-{i}": "y" for i in range(n_headers)}
    if n_bytes:
        headers["x-long"] = "y" * n_bytes
    return headers


@pytest.mark.parametrize("fits, beyond", [(head_of(90), head_of(101)), (head_of(0, 31 << 10), head_of(0, 33 << 10))],
                         ids=["headers", "header bytes"])
def test_edges_of_a_head(hybrid, fits, beyond):
    assert hybrid.request("GET", "/health", None, fits)[0] == 200
    assert hybrid.request("GET", "/health", None, beyond)[0] == 431
