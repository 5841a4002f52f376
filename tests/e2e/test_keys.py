"""API keys, their tenants and limits; HTTPS; what an operator may ask for."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse

import pytest

import canonical
from cluster import BIN, MODEL, Cluster, Server, wait_until
from prompts import PROMPTS

LONG = "The keeper of the house wrote down, line by line, who had come and who had gone. " * 12


def write_keys(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


def ask(server, key, prompt=LONG, n=4, headers=None, **more):
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
    return server.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}", **(headers or {})})


def cached(answer):
    status, _, data = answer
    assert status == 200, data
    return json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path / "keys", "alpha alice\nbeta bob  # the other\ngamma carol max-requests=1\ndelta dave max-tokens=300\n")


def test_tenants_do_not_share_pages(keys):
    server = Server("--api-key-file", keys)
    try:
        assert cached(ask(server, "alpha")) == 0
        one = cached(ask(server, "alpha"))
        assert one >= 128
        assert cached(ask(server, "beta")) == 0  # the same prompt, another tenant
        assert cached(ask(server, "beta")) == one
        # a client's wish changes nothing
        assert cached(ask(server, "gamma", tenant_salt="0" * 64, cache_salt="alpha", user="alice")) == 0
        same = {canonical.body(ask(server, k)[2]) for k in ("alpha", "beta", "gamma")}
        assert len(same) == 1  # the cache never shows in the answer
    finally:
        server.stop()


def test_tenants_across_a_cluster(keys):
    """The salt goes all the way: prefill's cache and decode's, which says what need not be sent."""
    cluster = Cluster(router_flags=("--api-key-file", keys))
    try:
        def pages(key):
            before = cluster.prefill[0].stats()["handoff_sent"]["slab_bytes"]
            n = cached(ask(cluster.router, key))
            return n, cluster.prefill[0].stats()["handoff_sent"]["slab_bytes"] - before

        first, again = pages("alpha"), pages("alpha")
        other, other_again = pages("beta"), pages("beta")
        assert first[0] == other[0] == 0 and first[1] == other[1] > 0
        assert again[0] == other_again[0] >= 128 and again[1] == other_again[1] < first[1]
        cluster.check_no_leak()
    finally:
        cluster.stop()


def test_keys_are_read_again(keys):
    server = Server("--api-key-file", keys, "--api-key", "fixed")
    try:
        def status(key):
            return server.request("GET", "/v1/models", None, {"Authorization": f"Bearer {key}"})[0]

        def hup(line):
            n = len(server.lines)
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: any(line in l for l in server.lines[n:]), line)

        assert [status(k) for k in ("alpha", "beta", "fixed", "nobody", "", "alph", "alphaa")] == [200] * 3 + [401] * 4
        assert server.request("GET", "/v1/models", None, {"x-api-key": "alpha"})[0] == 200
        assert server.request("GET", "/v1/models")[0] == 401
        write_keys(keys, "beta bob\nnew nina\n")
        hup("read again")
        assert [status(k) for k in ("alpha", "beta", "fixed", "new")] == [401, 200, 200, 200]
        for broken in ("beta\nbeta\n", "one two three\n", "x" * 2000):
            write_keys(keys, broken)
            hup("not read again")
            assert [status(k) for k in ("beta", "new", "nobody")] == [200, 200, 401]
        keys.unlink()
        hup("not read again")
        assert status("new") == 200
        assert not [l for l in server.lines if "alpha" in l or "beta" in l]  # no key in the log
    finally:
        server.stop()


def test_bad_keys_do_not_start(tmp_path):
    for text in ("", "a a a\n", "a max-requests=x\n"):
        path = write_keys(tmp_path / "keys", text)
        done = subprocess.run([BIN, "serve", "-m", MODEL, "--port", "0", "--api-key-file", str(path)], capture_output=True, text=True)
        assert done.returncode == 2 and "--api-key-file" in done.stderr, done.stderr
    done = subprocess.run([BIN, "serve", "-m", MODEL, "--port", "0", "--api-key-file", str(tmp_path / "none")], capture_output=True,
                          text=True)
    assert done.returncode == 2 and "No such file" in done.stderr


def test_limits_of_a_key(keys):
    server = Server("--api-key-file", keys)
    try:
        parts = urllib.parse.urlsplit(server.url)
        held = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        held.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}),
                     {"Authorization": "Bearer gamma"})
        stream = held.getresponse()
        assert stream.status == 200 and stream.readline().startswith(b"data: ")
        answer = ask(server, "gamma", "Twice", 1)
        assert answer[0] == 429, answer
        assert int(answer[1]["Retry-After"]) >= 1
        assert json.loads(answer[2])["error"]["code"] == "rate_limit_exceeded"
        assert "1 of its 1 requests" in json.loads(answer[2])["error"]["message"]
        assert ask(server, "alpha", "Thrice", 1)[0] == 200  # another's limit is not ours
        assert b"[DONE]" in stream.read()
        held.close()
        assert ask(server, "gamma", "Again", 1)[0] == 200
        # tokens: prompt and what the answer may become
        assert ask(server, "delta", "Short", 100)[0] == 200
        refused = ask(server, "delta", "Short", 400)
        assert refused[0] == 400 and "300" in json.loads(refused[2])["error"]["message"]
        assert ask(server, "delta", "Short", 100)[0] == 200  # nothing was taken by the one refused
    finally:
        server.stop()


def test_deadline(hybrid, cluster):
    for server in (hybrid, cluster):
        body = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        start = time.monotonic()
        status, _, data = server.request("POST", "/v1/completions", body, {"x-baton-deadline-ms": "300"})
        assert status == 504 and json.loads(data)["error"]["code"] == "deadline_exceeded", (status, data)
        assert time.monotonic() - start < 30
        body["max_tokens"] = 2
        assert server.request("POST", "/v1/completions", body, {"x-baton-deadline-ms": "60000"})[0] == 200
        for bad in ("0", "-1", "soon", "1.5", "99999999999", ""):
            status, _, data = server.request("POST", "/v1/completions", body, {"x-baton-deadline-ms": bad})
            assert status == 400 and json.loads(data)["error"]["param"] == "x-baton-deadline-ms", bad


# ---- HTTPS ----


@pytest.fixture
def certificates(tmp_path):
    for name in ("one", "two"):
        done = subprocess.run([BIN, "cluster", "init", str(tmp_path / name), "--http-names", "localhost,127.0.0.1"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return tmp_path


def https(server, method, path, body=None, ca=None, timeout=60, minimum=None):
    parts = urllib.parse.urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(ca))
    if minimum:
        context.minimum_version = minimum
    c = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    try:
        c.request(method, path, body=json.dumps(body) if body else None)
        r = c.getresponse()
        return r.status, dict(r.headers), r.read()
    finally:
        c.close()


def test_https(certificates, hybrid):
    one, two = certificates / "one", certificates / "two"
    live_cert, live_key = certificates / "live.crt", certificates / "live.key"
    for name, to in (("crt", live_cert), ("key", live_key)):
        to.write_bytes((one / f"http.{name}").read_bytes())
        to.chmod(0o600)
    server = Server("--tls-cert", live_cert, "--tls-key", live_key, "--admin", "127.0.0.1:0")
    try:
        assert server.find(r"try: curl -sN https://")
        body = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 24, "temperature": 0}
        plain = canonical.body(hybrid.post("/v1/chat/completions", body))
        status, _, data = https(server, "POST", "/v1/chat/completions", body, one / "ca.crt")
        assert status == 200 and canonical.body(data) == plain
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        for minimum in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            _, _, data = https(server, "POST", "/v1/chat/completions", streamed, one / "ca.crt", minimum=minimum)
            assert canonical.stream(data) == canonical.stream(hybrid.post("/v1/chat/completions", streamed))
        with pytest.raises(ssl.SSLError):
            https(server, "GET", "/health", ca=two / "ca.crt")
        # a body in many records, and an answer that ends with the connection and says so
        big = {"prompt": "word " * 20000, "max_tokens": 1}
        status, _, data = https(server, "POST", "/v1/completions", big, one / "ca.crt")
        assert status == 400 and b"context_length_exceeded" in data
        parts = urllib.parse.urlsplit(server.url)
        context = ssl.create_default_context(cafile=str(one / "ca.crt"))
        raw = context.wrap_socket(socket.create_connection((parts.hostname, parts.port), 20), server_hostname="localhost",
                                  suppress_ragged_eofs=False)
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        data = b""
        while chunk := raw.recv(4096):
            data += chunk
        assert data.startswith(b"HTTP/1.1 200") and b'"status":"ok"' in data
        raw.close()
        # plain HTTP is told so
        with socket.create_connection((parts.hostname, parts.port), 20) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(4096).startswith(b"HTTP/1.1 400")
        with socket.create_connection((parts.hostname, parts.port), 20) as s:
            s.sendall(b"\x16\x03\x01\x00\x05garbage" * 3)
            s.settimeout(20)
            while s.recv(4096):
                pass
        # another certificate, without a restart
        for name, to in (("crt", live_cert), ("key", live_key)):
            to.write_bytes((two / f"http.{name}").read_bytes())
        server.process.send_signal(signal.SIGHUP)
        server.wait_line("keys and certificates read again")
        assert https(server, "GET", "/health", ca=two / "ca.crt")[0] == 200
        live_key.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        server.wait_line("not read again")
        assert https(server, "GET", "/health", ca=two / "ca.crt")[0] == 200
    finally:
        server.stop()


def test_https_leaves_nothing(certificates):
    """Clients that leave in the middle of anything: no socket, no page stays."""
    one = certificates / "one"
    server = Server("--tls-cert", one / "http.crt", "--tls-key", one / "http.key")
    try:
        parts = urllib.parse.urlsplit(server.url)
        files = len(os.listdir(f"/proc/{server.pid}/fd"))
        context = ssl.create_default_context(cafile=str(one / "ca.crt"))
        for i in range(30):
            s = socket.create_connection((parts.hostname, parts.port), 20)
            if i % 3:
                s = context.wrap_socket(s, server_hostname="localhost")
                text = json.dumps({"prompt": "Once", "max_tokens": 300, "stream": True}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text) + text[:i * 2])
                if i % 3 == 2:
                    s.sendall(text[i * 2:])
                    s.recv(1)
            else:
                s.sendall(b"\x16\x03\x01\x02\x00\x01"[:i % 7])
            s.close()
        wait_until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= files, "sockets are closed")
        assert https(server, "GET", "/health", ca=one / "ca.crt")[0] == 200
    finally:
        server.stop()


# ---- the operator ----


def admin_of(server):
    return "http://" + server.wait_line(r"listener=admin addr=(\S+)").group(1)


def at(url, server, *arguments, **more):
    kept, server.url = server.url, url
    try:
        return server.request(*arguments, **more)
    finally:
        server.url = kept


def test_admin(keys):
    server = Server("--admin", "127.0.0.1:0", "--api-key-file", keys)
    try:
        admin = admin_of(server)
        assert server.request("POST", "/admin/drain", None, {"Authorization": "Bearer alpha"})[0] == 404
        assert at(admin, server, "GET", "/health")[0] == 200
        assert at(admin, server, "GET", "/v1/models")[0] == 404
        status, _, data = at(admin, server, "GET", "/admin/drain")
        assert status == 200 and json.loads(data)["draining"] is False
        answers = []
        thread = threading.Thread(target=lambda: answers.append(ask(server, "alpha", "Once", 200)))
        thread.start()
        wait_until(lambda: json.loads(at(admin, server, "GET", "/admin/drain")[2])["running"] == 1, "it runs")
        status, _, data = at(admin, server, "POST", "/admin/drain")
        assert status == 202 and json.loads(data) == {"draining": True, "running": 1, "waiting": 0}
        assert at(admin, server, "GET", "/health")[0] == 503
        refused = ask(server, "alpha", "Twice", 1)
        assert refused[0] == 503 and json.loads(refused[2])["error"]["code"] == "draining"
        thread.join(120)
        assert answers[0][0] == 200  # what ran was finished
        assert at(admin, server, "POST", "/admin/drain")[0] == 202
        assert json.loads(at(admin, server, "GET", "/admin/drain")[2])["running"] == 0
    finally:
        server.stop()


def test_admin_key():
    decode = Server("--node-role", "decode", "--node-id", "decode-0", "--serving-bind", "127.0.0.1:0", "-t", "1", "--admin-key", "root")
    try:
        assert decode.request("POST", "/admin/drain")[0] == 401
        assert decode.request("POST", "/admin/drain", None, {"Authorization": "Bearer user"})[0] == 401
        assert decode.request("GET", "/health")[0] == 200
        assert decode.request("POST", "/admin/drain", None, {"Authorization": "Bearer root"})[0] == 202
        assert decode.request("GET", "/readyz")[0] == 503
    finally:
        decode.stop()


def test_who_cannot_be_served_in_time_is_told_at_once(cluster):
    """Many long prompts wait; a request that may not wait so long is refused before it is accepted."""
    def long_prompt(i):
        body = {"prompt": [[1000 + (j * 37 + (77 + i) * 1009) % 40000 for j in range(600)]], "max_tokens": 2}
        assert cluster.request("POST", "/v1/completions", body)[0] == 200

    threads = [threading.Thread(target=long_prompt, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    try:
        wait_until(lambda: cluster.router.stats()["prompt_tokens_a_second"] > 0, "a rate is known", every=0.05)
        # one that may wait is served, however long the prompts before it take
        assert ask(cluster, None, "Once", 2, headers={"x-baton-deadline-ms": "600000"})[0] == 200
        assert cluster.router.stats()["waiting_prompt_tokens"] > 600
        status, headers, data = cluster.request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 2}, {"x-baton-deadline-ms": "50"})
        assert status == 429 and json.loads(data)["error"]["code"] == "queue_full", data
        assert int(headers["Retry-After"]) >= 1 and "are waiting to be read" in json.loads(data)["error"]["message"]
    finally:
        for t in threads:
            t.join()
    assert cluster.router.stats()["waiting_prompt_tokens"] == 0
    assert ask(cluster, None, "Once", 2)[0] == 200
