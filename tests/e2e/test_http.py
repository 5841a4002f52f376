"""What a client meets at `baton serve`: shapes, statuses, headers, streams, and everything malformed.

The fixture `hybrid` (conftest.py) is a running server with `.url` ("http://127.0.0.1:PORT"). Only the standard library is
needed; tests with real clients are skipped where those are not installed.
"""

import concurrent.futures
import http.client
import json
import math
import re
import socket
import time
import urllib.parse

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = [{"role": "user", "content": "Say hello in one short sentence."}]


def address(server):
    parts = urllib.parse.urlsplit(server.url)
    return parts.hostname, parts.port


def ask(server, method, path, body=None, headers=None, timeout=60):
    """(status, headers, body bytes) of one request on a connection of its own."""
    conn = http.client.HTTPConnection(*address(server), timeout=timeout)
    try:
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        conn.request(method, path, body=body, headers=headers or {})
        response = conn.getresponse()
        return response.status, response.headers, response.read()
    finally:
        conn.close()


def post(server, path, body, status=200, **kwargs):
    got, headers, data = ask(server, "POST", path, body, **kwargs)
    assert got == status, data
    return json.loads(data)


def events(server, path, body):
    """The events of a stream: (event name or None, data)."""
    got, headers, data = ask(server, "POST", path, {**body, "stream": True})
    assert got == 200, data
    assert headers["Content-Type"].startswith("text/event-stream")
    out = []
    for block in data.decode().split("\n\n"):
        name = None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                out.append((name, line[6:]))
    return out


def raw(server, data, timeout=15):
    """Sends bytes as they are and reads until the server closes; the status of the first answer (0: none)."""
    with socket.create_connection(address(server), timeout=timeout) as s:
        s.sendall(data)
        got = b""
        try:
            while True:
                piece = s.recv(65536)
                if not piece:
                    break
                got += piece
        except (ConnectionResetError, TimeoutError):
            pass
    match = re.match(rb"HTTP/1\.1 (\d+) ", got)
    return int(match.group(1)) if match else 0


# ---- shapes ----


def test_chat(hybrid):
    body = {"messages": HI, "max_tokens": 12, "temperature": 0, "seed": 1}
    status, headers, data = ask(hybrid, "POST", CHAT, body)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["x-baton-seed"] == "1"
    assert headers["x-request-id"]
    assert headers["Access-Control-Allow-Origin"] == "*"
    got = json.loads(data)
    assert list(got) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert got["object"] == "chat.completion"
    assert got["id"].startswith("chatcmpl-")
    assert re.fullmatch(r"fp_[0-9a-f]{16}", got["system_fingerprint"])
    (choice,) = got["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    usage = got["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= usage["completion_tokens"] <= 12


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 42}])
def test_stream_is_the_whole_answer_in_pieces(hybrid, sampling):
    body = {"messages": HI, "max_tokens": 24, **sampling}
    whole = post(hybrid, CHAT, body)
    got = events(hybrid, CHAT, {**body, "stream_options": {"include_usage": True}})
    assert got[-1] == (None, "[DONE]")
    chunks = [json.loads(data) for name, data in got[:-1]]
    assert len({c["id"] for c in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    pieces = [c["choices"][0]["delta"]["content"] for c in chunks[1:-2]]
    assert all(pieces)
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert chunks[-1]["usage"][key] == whole["usage"][key]


def test_seed_is_returned_and_repeats(hybrid):
    body = {"messages": HI, "max_tokens": 16, "temperature": 1.5}
    status, headers, data = ask(hybrid, "POST", CHAT, body)
    again = post(hybrid, CHAT, {**body, "seed": int(headers["x-baton-seed"])})
    assert again["choices"] == json.loads(data)["choices"]


def test_chat_logprobs(hybrid):
    body = {"messages": HI, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    choice = post(hybrid, CHAT, body)["choices"][0]
    entries = choice["logprobs"]["content"]
    text = b"".join(bytes(e["bytes"]) for e in entries if not e["token"].startswith("<|")).decode()
    assert text.startswith(choice["message"]["content"])
    for e in entries:
        assert e["logprob"] <= 0
        assert len(e["top_logprobs"]) == 3
        assert e["top_logprobs"][0]["logprob"] == e["logprob"]  # greedy
        assert sum(math.exp(t["logprob"]) for t in e["top_logprobs"]) < 1.0001


def test_completions(hybrid):
    body = {"prompt": ["The capital of France is", "One, two, three,"], "max_tokens": 4, "temperature": 0}
    both = post(hybrid, COMPLETIONS, body)
    assert [c["index"] for c in both["choices"]] == [0, 1]
    alone = [post(hybrid, COMPLETIONS, {**body, "prompt": p}) for p in body["prompt"]]
    assert [c["text"] for c in both["choices"]] == [a["choices"][0]["text"] for a in alone]
    assert both["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)


def test_scoring_payload(hybrid):
    """lm-eval's: ids, one token, echo; every list has exactly prompt + answer entries."""
    ids = post(hybrid, "/tokenize", {"prompt": "The quick brown fox jumps over the lazy dog."})["tokens"]
    body = {"model": "m", "prompt": [ids, ids[:5]], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    got = post(hybrid, COMPLETIONS, body)
    for choice, n in zip(got["choices"], (len(ids), 5)):
        lp = choice["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert len(lp[key]) == n + 1, key
        assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
        for token, value, top in list(zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]))[1:]:
            assert top[token] == value
            assert max(top.values()) >= value
        assert lp["text_offset"] == sorted(lp["text_offset"])
    assert got["choices"][0]["logprobs"]["token_logprobs"][:5] == got["choices"][1]["logprobs"]["token_logprobs"][:5]
    assert post(hybrid, COMPLETIONS, body)["choices"] == got["choices"]  # a warm cache changes nothing


def test_stop(hybrid):
    body = {"prompt": "One, two, three, four,", "max_tokens": 16, "temperature": 0}
    text = post(hybrid, COMPLETIONS, body)["choices"][0]["text"]
    stop = text[len(text) // 2:][:3]
    got = post(hybrid, COMPLETIONS, {**body, "stop": [stop]})["choices"][0]
    assert got["text"] == text[:text.index(stop)]
    assert got["finish_reason"] == "stop"
    pieces = [json.loads(d)["choices"][0]["text"] for _, d in events(hybrid, COMPLETIONS, {**body, "stop": stop})[:-1]]
    assert "".join(pieces) == got["text"]


def test_special_tokens_in_words_stay_words(hybrid):
    info = json.loads(ask(hybrid, "GET", "/tokenizer_info")[2])
    special = info["eos_token"]
    n = [post(hybrid, CHAT, {"messages": [{"role": "user", "content": c}], "max_tokens": 1})["usage"]["prompt_tokens"]
         for c in ("", special)]
    assert n[1] - n[0] == len(post(hybrid, "/tokenize", {"prompt": special, "parse_special": False})["tokens"])
    assert len(post(hybrid, "/tokenize", {"prompt": special, "add_special_tokens": False})["tokens"]) == 1


def test_tokenizer_routes(hybrid):
    text = "Grüße, 世界! 🙂\n\tdef f(x): return x"
    tokens = post(hybrid, "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert tokens["count"] == len(tokens["tokens"])
    assert post(hybrid, "/detokenize", {"tokens": tokens["tokens"]})["prompt"] == text


def test_models(hybrid):
    models = json.loads(ask(hybrid, "GET", "/v1/models")[2])["data"]
    one = json.loads(ask(hybrid, "GET", "/v1/models/" + urllib.parse.quote(models[0]["id"], safe=""))[2])
    assert one == models[0]
    assert set(one) == {"id", "object", "created", "owned_by", "max_model_len"}
    assert post(hybrid, CHAT, {"messages": HI, "max_tokens": 1, "model": "anything"})["model"] == one["id"]
    assert ask(hybrid, "GET", "/v1/models/nothing")[0] == 404


@pytest.mark.parametrize("path", ["/health", "/readyz", "/livez"])
def test_health(hybrid, path):
    assert ask(hybrid, "GET", path)[0] == 200
    status, headers, data = ask(hybrid, "HEAD", path)
    assert (status, data) == (200, b"")


def test_metrics(hybrid):
    before = ask(hybrid, "GET", "/metrics")[2].decode()
    post(hybrid, CHAT, {"messages": HI, "max_tokens": 3, "ignore_eos": True})
    after = ask(hybrid, "GET", "/metrics")[2].decode()

    def value(text, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"baton_{name}(\{{|\s)", line))

    assert value(after, "generation_tokens_total") - value(before, "generation_tokens_total") == 3
    assert value(after, "request_success_total") - value(before, "request_success_total") == 1
    for name in ("prompt_tokens_total", "num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_count",
                 "inter_token_latency_seconds_count", "e2e_request_latency_seconds_count"):
        assert f"baton_{name}" in after


# ---- connections ----


def test_keep_alive_and_request_id(hybrid):
    conn = http.client.HTTPConnection(*address(hybrid), timeout=30)
    for i in range(3):
        conn.request("POST", CHAT, json.dumps({"messages": HI, "max_tokens": 2}), {"x-request-id": f"mine-{i}"})
        response = conn.getresponse()
        assert response.status == 200
        assert response.headers["x-request-id"] == f"mine-{i}"
        response.read()
    conn.close()


def test_options(hybrid):
    status, headers, data = ask(hybrid, "OPTIONS", CHAT, headers={"Origin": "http://elsewhere"})
    assert (status, data) == (204, b"")
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Authorization" in headers["Access-Control-Allow-Headers"]
    assert "Access-Control-Allow-Credentials" not in headers


def test_http10_stream_is_delimited_by_close(hybrid):
    body = json.dumps({"messages": HI, "max_tokens": 3, "stream": True}).encode()
    with socket.create_connection(address(hybrid), timeout=30) as s:
        s.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        got = b"".join(iter(lambda: s.recv(65536), b""))
    head, _, rest = got.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


def test_pipelined_requests_are_answered_in_order(hybrid):
    one = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    two = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    last = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with socket.create_connection(address(hybrid), timeout=30) as s:
        s.sendall(one + two + last)
        got = b"".join(iter(lambda: s.recv(65536), b""))
    assert got.count(b"HTTP/1.1 200 OK") == 3
    assert got.index(b'"list"') < got.index(b'"text_completion"') < got.index(b'"status":"ok"')


def running(server):
    text = ask(server, "GET", "/metrics")[2].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if re.match(r"baton_num_requests_(running|waiting)[{ ]", line))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_cancelled(hybrid, stream):
    body = json.dumps({"messages": HI, "max_tokens": 2000, "ignore_eos": True, "stream": stream}).encode()
    s = socket.create_connection(address(hybrid), timeout=30)
    s.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
    if stream:
        s.recv(1)
    deadline = time.time() + 10
    while running(hybrid) == 0 and time.time() < deadline:
        time.sleep(0.02)
    s.close()
    start = time.time()
    while running(hybrid) > 0 and time.time() < start + 10:
        time.sleep(0.02)
    assert time.time() - start < 2


def test_many_at_once_equal_alone(hybrid):
    bodies = [{"messages": [{"role": "user", "content": f"Count from {i} to {i + 3}."}], "max_tokens": 12, "seed": i,
               "temperature": i % 2} for i in range(12)]
    alone = [post(hybrid, CHAT, b)["choices"] for b in bodies]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda b: post(hybrid, CHAT, b)["choices"], bodies))
    assert together == alone


# ---- what is wrong ----

BAD_JSON = [
    b"", b"{", b"[]", b"5", b"null", b'"x"', b"{} {}", b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"a":"\\ud800"}',
    b'{"a":"\\u0000"}', b'{"a":1,"a":2}', b'{"temperature":NaN}', b'{"temperature":1e999}', b'{"seed":99999999999999999999}',
    b"[" * 100000, b'{"a":' * 50000, b"\x00\x01\x02", b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BAD_JSON, ids=lambda b: repr(b[:24]))
def test_bad_json(hybrid, path, body):
    error = post(hybrid, path, body, status=400)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]


MESSAGE = {"messages": HI, "max_tokens": 1}
PROMPT = {"prompt": "x", "max_tokens": 1}
BAD_FIELDS = [
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": {"role": "user"}}, "messages"),
    (CHAT, {"messages": [5]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0]"),
    *[(CHAT, {**MESSAGE, name: value}, name) for name, value in [
        ("temperature", -1), ("temperature", "hot"), ("top_p", -0.1), ("top_p", 2), ("top_k", -2), ("top_k", 0.5), ("min_p", -1),
        ("min_p", 1.5), ("frequency_penalty", 3), ("presence_penalty", -3), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("seed", "x"), ("seed", 0.5), ("stop", 5), ("stop", [None]), ("stop", {}), ("max_tokens", 0), ("max_tokens", -2),
        ("max_tokens", "many"), ("max_completion_tokens", 0), ("min_tokens", -1), ("min_tokens", 2), ("logit_bias", []),
        ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"99999999": 1}), ("logit_bias", {"1": 1000}),
        ("logprobs", 1), ("top_logprobs", 3), ("stream", "yes"), ("stream_options", {"include_usage": True}), ("n", 2), ("n", 0),
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("response_format", {"type": "json_object"}),
        ("response_format", 5), ("ignore_eos", 1), ("model", 5), ("grammar", "root ::= x")]],
    (CHAT, {**MESSAGE, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (COMPLETIONS, {}, "prompt"),
    *[(COMPLETIONS, {**PROMPT, "prompt": p}, "prompt") for p in
      ([], [[]], {}, 5, [1, "x"], ["x", 1], [[1], "x"], [[1], 2], [-1], [99999999], [1.5], [None], [["x"]], ["x"] * 129)],
    (COMPLETIONS, {**PROMPT, "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {**PROMPT, "logprobs": -1}, "logprobs"),
    (COMPLETIONS, {**PROMPT, "echo": "yes"}, "echo"),
    (COMPLETIONS, {**PROMPT, "best_of": 3}, "best_of"),
    (COMPLETIONS, {**PROMPT, "suffix": "x"}, "suffix"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [99999999]}, "tokens"),
]


@pytest.mark.parametrize("path,body,param", BAD_FIELDS, ids=lambda v: json.dumps(v)[:48] if isinstance(v, dict) else str(v))
def test_bad_field_is_named(hybrid, path, body, param):
    error = post(hybrid, path, body, status=400)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert param.split("[")[0] in error["message"]


def test_prompt_that_does_not_fit(hybrid):
    limit = json.loads(ask(hybrid, "GET", "/v1/models")[2])["data"][0]["max_model_len"]
    token = post(hybrid, "/tokenize", {"prompt": "hello"})["tokens"][0]
    error = post(hybrid, COMPLETIONS, {"prompt": [token] * (limit + 7)}, status=400)["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(limit) in error["message"] and str(limit + 7) in error["message"]
    error = post(hybrid, CHAT, {"messages": [{"role": "user", "content": "hello " * limit}]}, status=400)["error"]
    assert error["code"] == "context_length_exceeded"


MALFORMED = [
    # request line
    (b"\r\n\r\nGARBAGE\r\n\r\n", 400),
    (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET /health\r\n\r\n", 400),
    (b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n", 400),
    (b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n", 400),
    (b"get /health HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405),
    (b"TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405),
    (b"GET /health\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    # headers
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: a\n\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX: 1\rY: 2\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40000 + b"\r\n\r\n", 431),
    (b"GET /" + b"y" * 40000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    # lengths, and two readings of one request
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 0x2\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551617\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 33554433\r\n\r\n", 413),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked, identity\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}xx\r\n0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    (b"POST /tokenize HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 400),
    # routes
    (b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
    (b"GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405),
    (b"DELETE /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405),
    (b"GET /v1/../health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
]


@pytest.mark.parametrize("data,status", MALFORMED, ids=lambda v: repr(v[:40]) if isinstance(v, bytes) else v)
def test_malformed(hybrid, data, status):
    assert raw(hybrid, data) == status
    assert ask(hybrid, "GET", "/readyz")[0] == 200


def test_nothing_of_it_stays(hybrid):
    """After all of the above the server runs nothing and still answers."""
    deadline = time.time() + 5
    while running(hybrid) > 0 and time.time() < deadline:
        time.sleep(0.05)
    assert running(hybrid) == 0
    assert post(hybrid, CHAT, MESSAGE)["choices"]


# ---- real clients ----


def test_openai_client(hybrid):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=hybrid.url + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    args = {"model": model, "messages": HI, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**args).choices[0].message.content
    stream = client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True})
    pieces, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += chunk.choices[0].delta.content or "" if chunk.choices else ""
    assert pieces == whole
    assert usage.completion_tokens >= 1
    text = client.completions.create(model=model, prompt="One, two,", max_tokens=3, temperature=0).choices[0].text
    parts = client.completions.create(model=model, prompt="One, two,", max_tokens=3, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in parts) == text
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**args, n=2)
    assert error.value.param == "n"
