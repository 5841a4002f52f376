"""Nodes join and leave a running cluster: the peers file, SIGHUP, nodes that restart."""

import os
import re
import signal
import threading

import canonical
from cluster import Cluster, Server, wait_until

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "temperature": 0}


def write(path, *lines):
    """As an editor or a config map does: the whole file at once."""
    new = f"{path}.new"
    with open(new, "w") as f:
        f.write("# the cluster\n" + "".join(f"{line}\n" for line in lines))
    os.replace(new, path)


def decode_node(i):
    return Server("--node-role", "decode", "--node-id", f"decode-{i}", "--serving-bind", "127.0.0.1:0", "-t", 1)


def test_nodes_join_and_leave(tmp_path):
    peers = tmp_path / "peers"
    first = decode_node(0)
    write(peers, f"decode {first.serving}")
    prefill = Server("--node-role", "prefill", "--node-id", "prefill-0", "--serving-bind", "127.0.0.1:0", "--peers", peers, "-t", 1)
    write(peers, f"decode {first.serving}", f"prefill {prefill.serving}")
    router = Server("--node-role", "router", "--node-id", "router-0", "--peers", peers)
    router.wait_healthy()
    body = {**HELLO, "max_tokens": 500, "ignore_eos": True, "stream": True}
    expected = canonical.stream(router.post(CHAT, body))

    # another joins, and the first leaves while it is at work
    second = decode_node(1)
    result = {}
    thread = threading.Thread(target=lambda: result.update(data=router.post(CHAT, body)))
    thread.start()
    wait_until(lambda: first.stats()["engine"]["running"] == 1, "decoding")
    write(peers, f"prefill {prefill.serving}", f"decode {second.serving}")
    wait_until(lambda: second.stats()["engine"]["running"] == 1, "moved to the second", 30)
    wait_until(lambda: "decode-0" not in router.stats()["nodes"], "the first is let go", 30)
    thread.join()
    assert canonical.stream(result["data"]) == expected
    assert router.stats()["moved"] == 1 and router.stats()["resumed"] == 0
    first.check_no_leak()
    first.stop()

    # a line that is wrong changes nothing; SIGHUP reads at once
    write(peers, f"prefill {prefill.serving}", "decode nowhere")
    router.process.send_signal(signal.SIGHUP)
    router.wait_line("peers file not read.*line 3")
    assert canonical.stream(router.post(CHAT, body)) == expected
    write(peers, f"prefill {prefill.serving}", f"decode {second.serving}", "decode 127.0.0.1:1")
    router.process.send_signal(signal.SIGHUP)
    router.wait_line("msg=peers .*decode=2", 10)
    peers.unlink()
    router.wait_line("peers file is gone", 20)
    assert canonical.stream(router.post(CHAT, body)) == expected
    for s in (prefill, second):
        s.check_no_leak()
    for s in (router, prefill, second):
        s.stop()


def test_a_node_that_restarts_is_used_again():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % s.getsockname()[1]
    flags = ["--node-role", "decode", "--node-id", "decode-0", "--serving-bind", address, "-t", 1]
    decode = Server(*flags)
    prefill = Server("--node-role", "prefill", "--node-id", "prefill-0", "--serving-bind", "127.0.0.1:0", "--decode-peers", address, "-t", 1)
    router = Server("--node-role", "router", "--prefill-peers", prefill.serving, "--decode-peers", address)
    router.wait_healthy()
    expected = canonical.body(router.post(CHAT, {**HELLO, "max_tokens": 20}))
    for _ in range(2):
        decode.kill()
        decode = Server(*flags)
        router.wait_healthy()
        assert canonical.body(router.post(CHAT, {**HELLO, "max_tokens": 20})) == expected
    for s in (router, prefill, decode):
        s.stop()


def series(server, name):
    """{labels as written: value} of one name of /metrics."""
    text = server.request("GET", "/metrics")[2].decode()
    return {m.group(1): float(m.group(2)) for m in re.finditer(rf"^baton_{name}{{(.*?)}} (\S+)$", text, re.M)}


def test_what_links_and_faults_cost_is_said():
    cluster = Cluster(n_prefill=1, n_decode=2)
    try:
        router, prefill = cluster.router, cluster.prefill[0]
        assert len(series(router, "peer_link_up")) == 3 and set(series(router, "peer_link_up").values()) == {1}
        assert all(v >= 0 for v in series(router, "peer_round_trip_seconds").values())
        body = {**HELLO, "max_tokens": 400, "ignore_eos": True, "stream": True}
        expected = canonical.stream(router.post(CHAT, body))
        sent = series(prefill, "peer_bulk_sent_bytes")
        assert sum(sent.values()) > 0 and all('peer_role="decode"' in k for k, v in sent.items() if v)
        assert set(series(prefill, "handoff_pages_leaving").values()) == {0}
        result = {}
        thread = threading.Thread(target=lambda: result.update(data=router.post(CHAT, body)))
        thread.start()
        busy = wait_until(lambda: [d for d in cluster.decode if d.stats()["engine"]["running"]], "decoding")[0]
        name = busy.flags[busy.flags.index("--node-id") + 1]
        busy.kill()
        thread.join()
        assert canonical.stream(result["data"]) == expected
        (labels, n), = series(router, "router_recovery_seconds_count").items()
        assert 'reason="peer_lost"' in labels and n == 1
        assert sum(series(router, "router_recomputed_tokens_total").values()) > 0
        assert any(f'peer="{name}"' in k and v == 0 for k, v in series(router, "peer_link_up").items())
        cluster.decode.remove(busy)
        assert cluster.router.stats()["resumed"] == 1
        cluster.check_no_leak()
    finally:
        cluster.stop()
