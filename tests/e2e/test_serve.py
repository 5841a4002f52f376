"""The program as a person meets it: flags, ports, signals, roles that cannot be played, a family on one host."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from cluster import BIN, MODEL, Cluster, Server, wait_until

HELLO = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
CHAT = "/v1/chat/completions"


def serve(*flags, **kwargs):
    return subprocess.run([BIN, "serve", *map(str, flags)], capture_output=True, text=True, timeout=60, **kwargs)


def test_no_model():
    r = serve()
    assert r.returncode == 2 and "-m" in r.stderr and "BATON_ARG_MODEL" in r.stderr and "make model" in r.stderr


def test_missing_file():
    r = serve("-m", "/nowhere/model.gguf")
    assert r.returncode == 2 and "/nowhere/model.gguf" in r.stderr


def test_wrong_flag_names_the_nearest():
    r = serve("-m", MODEL, "--paralel", 4)
    assert r.returncode == 2 and "--parallel" in r.stderr


def test_wrong_values():
    for flags, word in ((["-c", "many"], "--ctx-size"), (["-np", "0"], "--parallel"), (["--kv-mem", "big"], "--kv-mem"),
                        (["--node-role", "boss"], "--node-role"), (["--roles", "1p"], "--roles"), (["--node-id", "a b"], "--node-id"),
                        (["--port", "70000"], "--port")):
        r = serve("-m", MODEL, *flags)
        assert r.returncode == 2 and word in r.stderr, (flags, r.stderr)


def test_kv_memory_below_a_page():
    r = serve("-m", MODEL, "--port", 0, "--kv-mem", "100K")
    assert r.returncode == 2 and "--kv-mem" in r.stderr and "102400 are given" in r.stderr


def test_unknown_host_names_its_flag():
    r = serve("-m", MODEL, "--host", "nowhere.invalid")
    assert r.returncode == 2 and "--host: " in r.stderr


def test_other_commands_name_what_is_wrong():
    for arguments, code, word in ((["run", "-m", MODEL], 2, "-p TEXT"), (["run", "-m", MODEL, "-p", "a", "-sys", b"\xff"], 1, "-sys"),
                                  (["run", "-m", MODEL, "-p", b"\xff"], 1, "not UTF-8"), (["bench", "-m", MODEL, "-o", "xml"], 2, "xml"),
                                  (["bench", "-m", MODEL, "-p", "x"], 2, "-p"), (["bench", "-m", MODEL, "-p", "0", "-n", "0"], 2, "-n 0")):
        r = subprocess.run([BIN, *arguments], capture_output=True, text=True, timeout=60)
        assert r.returncode == code and word in r.stderr and not r.stdout, (arguments, r.stderr)


def test_bench_gives_the_limit_beside_the_figure():
    r = subprocess.run([BIN, "bench", "-m", MODEL, "-t", "1", "-p", "16", "-n", "4", "-np", "1,2", "-r", "1", "--engine", "-o", "json"],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    rows = {row["test"]: row for row in json.loads(r.stdout)}
    assert list(rows) == ["pp16", "tg4", "tg4 x 2", "engine tg4", "engine tg4 x 2"]
    assert rows["pp16"]["unit"] == "GOPS"
    for name, row in rows.items():
        assert row["tokens_per_second"] > 0
        if name.startswith("engine"):
            assert 0 < row["engine_share"] < 1
        else:
            assert row["limit"] > 0 and 0 < row["of_limit"] < 3


def test_bench_says_what_its_table_means():
    r = subprocess.run([BIN, "bench", "-m", MODEL, "-t", "1", "-p", "0", "-n", "2", "-r", "1", "--engine"],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    table, notes = r.stdout.split("\n\n")
    assert [line.split("|")[6].strip() for line in table.split("\n")[2:]] == ["tg2", "engine tg2"]
    assert "GB/s" in notes and "GOPS" in notes and "The engine's own" in notes


def test_server_name_is_serve():
    name = os.path.join(os.path.dirname(BIN), "baton-server")
    r = subprocess.run([name, "--check-config", "-m", MODEL, "--port", "1234"], capture_output=True, text=True)
    assert r.returncode == 0 and "role=hybrid" in r.stdout and "1234" in r.stdout


def test_environment_and_llama_flags():
    r = serve("--check-config", "-ngl", "99", "--jinja", env={**os.environ, "BATON_ARG_MODEL": MODEL, "BATON_ARG_PORT": "4321"})
    assert r.returncode == 0 and "4321" in r.stdout and "--jinja" in r.stderr
    r = serve("--check-config", "--port", "5", env={**os.environ, "BATON_ARG_MODEL": MODEL, "BATON_ARG_PORT": "4321"})
    assert ":5 " in r.stdout


def test_check_config_finds_what_would_not_run():
    router = ["--check-config", "-m", MODEL, "--node-role", "router", "--prefill-peers", "127.0.0.1:1"]
    assert serve(*router, "--decode-peers", "127.0.0.1:2").returncode == 0
    for more, word in ((["--decode-peers", "nowhere"], "--decode-peers"), (["--decode-peers", "127.0.0.1:99999"], "--decode-peers")):
        r = serve(*router, *more)
        assert r.returncode == 2 and word in r.stderr and not r.stdout, r.stderr
    r = serve("--check-config", "-m", MODEL, "-c", 8192, "--kv-mem", "1M")
    assert r.returncode == 2 and "--kv-mem" in r.stderr
    for wrong in (["--roles", "foo"], ["--roles", "0p1d"], ["--roles", "99p99d"], ["--api-key-file", "/nowhere"], ["--admin", "127.0.0.1:99999"],
                  ["--tls-cert", os.devnull, "--tls-key", os.devnull], ["--tls-cert", "/nowhere"]):
        r = serve("--check-config", "-m", MODEL, *wrong)
        assert r.returncode == 2 and wrong[0] in r.stderr and not r.stdout, (wrong, r.stderr)
    r = serve("--check-config", "-m", os.devnull)
    assert r.returncode == 1 and "regular file" in r.stderr


def test_host_that_is_not_ours_is_named():
    r = serve("-m", MODEL, "--host", "192.0.2.1", "--port", 0)
    assert r.returncode == 1 and "--host" in r.stderr and "192.0.2.1" in r.stderr


def test_busy_port_is_named_before_the_model_loads():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        start = time.monotonic()
        r = serve("-m", MODEL, "--port", port)
        assert r.returncode == 1 and "--port" in r.stderr and str(port) in r.stderr
        r = serve("-m", MODEL, "--port", 0, "--node-role", "decode", "--serving-bind", f"127.0.0.1:{port}")
        assert r.returncode == 1 and "--serving-bind" in r.stderr and str(port) in r.stderr


@pytest.mark.parametrize("flags, why", [
    (["--node-role", "prefill"], "--serving-bind"),
    (["--node-role", "prefill", "--serving-bind", "127.0.0.1:0"], "--decode-peers"),
    (["--node-role", "decode"], "--serving-bind"),
    (["--node-role", "router"], "--prefill-peers"),
])
def test_misconfigured_role_serves_as_a_single_node(flags, why):
    server = Server(*flags)
    lines = [l for l in server.lines if "misconfigured role" in l]
    assert len(lines) == 1 and why in lines[0]
    assert server.find(r"msg=ready .*role=hybrid .*misconfigured=")
    assert json.loads(server.post(CHAT, HELLO))["choices"]
    assert why in server.request("GET", "/readyz")[2].decode()
    assert re.search(r"baton_role_misconfigured\S* 1", server.request("GET", "/metrics")[2].decode())
    server.stop()
    r = serve("-m", MODEL, "--port", 0, *flags, "--require-role")
    assert r.returncode == 2 and why in r.stderr


def test_roles_have_no_openai_routes(cluster):
    for worker, role in ((cluster.prefill[0], "prefill"), (cluster.decode[0], "decode")):
        status, _, data = worker.request("POST", CHAT, HELLO)
        assert status == 404 and role in data.decode()
        assert worker.request("GET", "/health")[0] == 200
        metrics = worker.request("GET", "/metrics")[2].decode()
        assert "baton_kv_pages" in metrics
        assert re.search(r'^baton_build_info\{.*role="' + role + r'",version="[0-9.]+"\} 1$', metrics, re.M), metrics
        assert re.search(r'^process_open_fds\{.*role="' + role + r'"\} [0-9]+$', metrics, re.M)


def test_the_router_says_when_it_can_serve(cluster):
    assert cluster.router.find(r'msg="nodes linked" .*prefill=1 decode=1 ctx=\d+')


def test_peers_without_a_role_are_noticed():
    server = Server("--decode-peers", "127.0.0.1:1", "--serving-bind", "127.0.0.1:0")
    for flag in ("--decode-peers", "--serving-bind"):
        assert server.find(rf'level=warn msg="a flag that this role does not use" .*role=hybrid flag={flag}'), server.tail()
    server.stop()


def test_bench_moves_pages_between_two_processes():
    r = subprocess.run([BIN, "bench", "-m", MODEL, "--transfer", "-p", "100", "-r", "2"], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stderr == "", (r.stdout, r.stderr)
    head, *ways = r.stdout.splitlines()
    assert head.startswith("100 tokens, 2.9 MB of KV in 4 pages")
    assert [w.split("  ")[0] for w in ways] == ["plain socket copy", "hand-off", "hand-off over TLS"]


def test_idle_server_stops_at_once():
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0)):
        server = Server()
        server.process.send_signal(number)
        assert server.process.wait(20) == code


def test_drain_finishes_what_runs():
    server = Server()
    result = {}

    def ask():
        result["answer"] = server.request("POST", CHAT, {**HELLO, "max_tokens": 120, "ignore_eos": True})

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: server.stats()["requests"] == 1, "request running")
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.find("msg=draining"), "draining")
    thread.join()
    assert result["answer"][0] == 200
    assert json.loads(result["answer"][2])["usage"]["completion_tokens"] == 120
    assert server.process.wait(30) == 0


def test_second_signal_stops_now():
    server = Server()
    threading.Thread(target=lambda: _ignore(lambda: server.request("POST", CHAT, {**HELLO, "max_tokens": 4000, "ignore_eos": True})), daemon=True).start()
    wait_until(lambda: server.stats()["requests"] == 1, "request running")
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.find("msg=draining"), "draining")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 143


def _ignore(f):
    try:
        f()
    except Exception:
        pass


def test_client_that_leaves_frees_its_pages_everywhere(cluster):
    body = {**HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    host, port = cluster.url.removeprefix("http://").split(":")
    for read_first in (False, True):
        s = socket.create_connection((host, int(port)))
        data = json.dumps(body).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        if read_first:
            assert s.recv(10)
        else:
            wait_until(lambda: cluster.router.stats()["requests"] == 1, "request running")
        s.close()
        wait_until(lambda: cluster.router.stats()["requests"] == 0, "request cancelled", 10)
        cluster.check_no_leak()


def test_router_says_no_when_no_node_can_serve():
    with socket.socket() as s:  # nobody will ever answer here
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    router = Server("--node-role", "router", "--prefill-peers", f"127.0.0.1:{port}", "--decode-peers", f"127.0.0.1:{port}")
    status, headers, data = router.request("POST", CHAT, HELLO)
    assert status == 503 and "Retry-After" in headers and json.loads(data)["error"]["message"]
    assert router.request("GET", "/readyz")[0] == 503
    assert router.request("GET", "/livez")[0] == 200
    router.stop()


def test_peers_may_start_in_any_order():
    ports = []
    for _ in range(2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    prefill_at, decode_at = (f"127.0.0.1:{p}" for p in ports)
    router = Server("--node-role", "router", "--prefill-peers", prefill_at, "--decode-peers", decode_at)
    prefill = Server("--node-role", "prefill", "--serving-bind", prefill_at, "--decode-peers", decode_at, "-t", 1)
    assert router.request("GET", "/health")[0] == 503
    decode = Server("--node-role", "decode", "--serving-bind", decode_at, "-t", 1)
    router.wait_healthy()
    prefill.wait_healthy()
    assert json.loads(router.post(CHAT, HELLO))["choices"]
    for s in (router, prefill, decode):
        s.stop()


def test_family():
    family = Server("--roles", "1p1d")
    family.wait_healthy()
    first = json.loads(family.post(CHAT, HELLO))["choices"][0]["message"]["content"]
    child = int(family.find(r"child=decode-0 pid=(\d+)").group(1))
    command = open(f"/proc/{child}/cmdline").read().split("\0")
    assert command[1:6] == ["serve", "--node-role", "decode", "--node-id", "decode-0"]
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: len([l for l in family.lines if "child started" in l and "decode-0" in l]) == 2, "restarted")
    family.wait_healthy()
    wait_until(lambda: family.request("POST", CHAT, HELLO)[0] == 200, "serving again", 30)
    assert json.loads(family.post(CHAT, HELLO))["choices"][0]["message"]["content"] == first
    children = [int(re.search(r"pid=(\d+)", l).group(1)) for l in family.lines if "child started" in l]
    family.stop()
    for pid in children:
        wait_until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split(")")[1][:3], f"child {pid} gone", 20)


def test_interrupt_from_the_terminal_drains_the_whole_family():
    """Ctrl-C reaches the whole process group; an idle child must not leave while requests are still on their way to it."""
    family = Server("--roles", "1p1d", new_group=True)
    family.wait_healthy()
    body = {**HELLO, "messages": [{"role": "user", "content": "word " * 1000}], "max_tokens": 16, "ignore_eos": True}
    result = {}
    thread = threading.Thread(target=lambda: result.update(answer=family.request("POST", CHAT, body)))
    thread.start()
    wait_until(lambda: family.stats()["requests"] == 1, "request running")
    os.killpg(family.pid, signal.SIGINT)
    thread.join()
    assert result["answer"][0] == 200
    assert family.process.wait(30) == 0
    assert not family.find("child died")


def test_family_dies_with_its_parent():
    family = Server("--roles", "1p1d")
    family.wait_healthy()
    children = [int(re.search(r"pid=(\d+)", l).group(1)) for l in family.lines if "child started" in l]
    family.kill()
    for pid in children:
        wait_until(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split(")")[1][:3], f"child {pid} gone", 20)


def test_worker_killed_in_mid_stream_is_survived():
    """Another node of each role is there: the stream ends with the same bytes."""
    import canonical

    cluster = Cluster(n_prefill=1, n_decode=2)
    body = {**HELLO, "max_tokens": 300, "ignore_eos": True}
    expected = canonical.body(cluster.post(CHAT, body))
    result = {}
    thread = threading.Thread(target=lambda: result.update(data=cluster.post(CHAT, body)))
    thread.start()
    victim = wait_until(lambda: next((d for d in cluster.decode if d.stats()["engine"]["running"]), None), "decoding")
    victim.kill()
    thread.join()
    assert canonical.body(result["data"]) == expected
    assert cluster.router.stats()["resumed"] == 1
    for s in cluster.servers:
        if s is not victim:
            s.stop()


def test_a_node_that_drains_hands_its_requests_on():
    """SIGTERM of a decode node: what it decodes moves to another, with the same bytes, and it ends long before they do."""
    import canonical

    cluster = Cluster(n_prefill=1, n_decode=2)
    bodies = [{**HELLO, "max_tokens": 400, "ignore_eos": True, "seed": i, "temperature": i % 2, "stream": i > 1} for i in range(4)]
    expected = [canonical.answer(cluster.post(CHAT, b), b["stream"]) for b in bodies]
    results = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: cluster.post(CHAT, bodies[i])})) for i in range(4)]
    for t in threads:
        t.start()
    wait_until(lambda: sum(d.stats()["engine"]["running"] for d in cluster.decode) == 4, "decoding")
    victim = max(cluster.decode, key=lambda d: d.stats()["engine"]["running"])
    n = victim.stats()["engine"]["running"]
    victim.stop()
    assert any(t.is_alive() for t in threads)
    for t in threads:
        t.join()
    assert [canonical.answer(results[i], bodies[i]["stream"]) for i in range(4)] == expected
    stats = cluster.router.stats()
    assert stats["moved"] == n > 0 and stats["resumed"] == 0, stats
    for s in cluster.servers:
        if s is not victim:
            s.check_no_leak() if s is not cluster.router else None
            s.stop()


def test_requests_wait_for_a_node_that_restarts():
    """The only decode node of a family dies; what is asked meanwhile waits for its successor instead of failing."""
    family = Server("--roles", "1p1d")
    family.wait_healthy()
    expected = json.loads(family.post(CHAT, HELLO))["choices"]
    os.kill(int(family.find(r"child=decode-0 pid=(\d+)").group(1)), signal.SIGKILL)
    wait_until(lambda: family.find("link down"), "the router notices")
    assert json.loads(family.post(CHAT, HELLO))["choices"] == expected
    family.stop()
