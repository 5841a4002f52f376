"""Enemies: who may link to a node, over TLS and without, and that the promise of equal bytes holds over TLS."""

import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess

import pytest

import canonical
from cluster import BIN, MODEL, Cluster, Server, wait_until
from prompts import GREEDY, PROMPTS, SAMPLED
from wire_client import HELLO, frame, hex64, sealed

CHAT = "/v1/chat/completions"


def make_certificates(where, *arguments):
    made = subprocess.run([BIN, "cluster", *arguments], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return where


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Folders of three clusters: house, an impostor of the same name with its own authority, and garden."""
    base = tmp_path_factory.mktemp("certificates")
    nodes = "router-0,prefill-0,decode-0,prefill-9,client:client-0"
    for name in ("house", "impostor", "garden"):
        make_certificates(base / name, "init", str(base / name), "--name", "garden" if name == "garden" else "house",
                          "--nodes", nodes)
    # garden's names under house's authority: as if one authority served two clusters
    shared = base / "shared"
    shutil.copytree(base / "house", shared)
    (shared / "cluster.name").write_text("garden\n")
    make_certificates(shared, "add", str(shared), "client:client-1")
    return base


@pytest.fixture(scope="module")
def secure_servers(certificates):
    cluster = Cluster(flags=("--cluster-dir", certificates / "house"), router_flags=("--cluster-dir", certificates / "house"))
    yield cluster
    cluster.stop()


@pytest.fixture
def secure(secure_servers):
    yield secure_servers
    secure_servers.check_no_leak()


def chat(prompt, sampling, streamed, n=24):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": n, **sampling}
    if streamed:
        body.update(stream=True, stream_options={"include_usage": True})
    return body


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_bytes_over_tls(hybrid, secure, sampling, streamed):
    jobs = [chat(p, sampling, streamed) for p in PROMPTS[:12]]
    single = [canonical.answer(hybrid.post(CHAT, body), streamed) for body in jobs]
    assert [canonical.answer(secure.post(CHAT, body), streamed) for body in jobs] == single
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert [canonical.answer(data, streamed) for data in pool.map(lambda b: secure.post(CHAT, b), jobs)] == single


def test_nothing_is_readable_on_the_way(secure_servers):
    """The links are TLS: the ready lines say so, and the slabs carry no checksum any more."""
    for w in secure_servers.workers:
        assert w.find(r"listener=serving .*tls=yes"), w.tail()
    sent = secure_servers.prefill[0].stats()["handoff_sent"]
    if sent["slab_bytes"]:
        assert sent["wire_bytes"] < sent["slab_bytes"] * 1.002


# ---- who is not let in ----


def expired_certificate(folder, tmp_path):
    """A certificate of folder's authority whose time is over, made with openssl's own tool."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl program")
    (tmp_path / "index.txt").write_text("")
    (tmp_path / "serial").write_text("01\n")
    (tmp_path / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=c\n[c]\ndatabase={tmp_path}/index.txt\nserial={tmp_path}/serial\nnew_certs_dir={tmp_path}\n"
        "default_md=sha256\npolicy=p\nx509_extensions=x\n[p]\ncommonName=supplied\n"
        "[x]\nsubjectAltName=URI:baton://house/client/client-0\nextendedKeyUsage=clientAuth,serverAuth\n")
    key, request, cert = (str(tmp_path / n) for n in ("old.key", "old.csr", "old.crt"))
    for command in (["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
                     "-subj", "/CN=client-0"],
                    ["ca", "-batch", "-notext", "-config", str(tmp_path / "ca.cnf"), "-cert", str(folder / "ca.crt"), "-keyfile",
                     str(folder / "ca.key"), "-startdate", "20200101000000Z", "-enddate", "20200201000000Z", "-in", request,
                     "-out", cert]):
        done = subprocess.run(["openssl", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return cert, key


def connect(address, certificate=None, maximum=None):
    """A TLS connection that believes anybody; certificate: (file, key)."""
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if maximum:
        context.maximum_version = maximum
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    raw = socket.create_connection((host, int(port)), 20)
    return context.wrap_socket(raw)


def pair_of(folder, name):
    return folder / f"{name}.crt", folder / f"{name}.key"


def hello(node_id="client-0", role="client", **changed):
    members = {"version_min": 1, "version_max": 1, "node_id": node_id, "epoch": hex64(7), "role": role, "connection": "control",
               "link": hex64(random.getrandbits(62) + 1), **changed}
    return sealed(frame(HELLO, members), 0)


def refusals(server, reason):
    text = server.request("GET", "/metrics")[2].decode()
    found = re.search(rf'^baton_peer_refusals_total{{[^}}]*reason="{reason}"[^}}]*}} (\d+)', text, re.M)
    return int(found.group(1)) if found else 0


def n_files(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def read_to_end(connection):
    data = b""
    try:
        connection.settimeout(20)
        while chunk := connection.recv(65536):
            data += chunk
    except (ssl.SSLError, ConnectionError):
        pass
    return data


class Refusal:
    """Counts and log lines of one node before and after somebody was turned away; nothing stays behind."""

    def __init__(self, server, reason):
        self.server, self.reason = server, reason

    def __enter__(self):
        self.before, self.n_lines, self.files = refusals(self.server, self.reason), len(self.server.lines), n_files(self.server)

    def __exit__(self, kind, *_):
        if kind:
            return
        wait_until(lambda: refusals(self.server, self.reason) > self.before, f"a refusal {self.reason}: {self.server.tail()}")
        wait_until(lambda: any(re.search(f"msg=\"?link refused\"? .*reason={self.reason}", line)
                               for line in self.server.lines[self.n_lines:]), f"a line with {self.reason}: {self.server.tail()}")
        wait_until(lambda: n_files(self.server) <= self.files, "sockets are closed")


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_strangers(secure, certificates, tmp_path, which):
    node = getattr(secure, which)[0]
    house = certificates / "house"
    good = pair_of(house, "client-0")

    with Refusal(node, "bad_certificate"):  # none at all
        assert read_to_end(connect(node.serving)) == b""
    with Refusal(node, "bad_certificate"):  # another authority, the same names
        c = connect(node.serving, pair_of(certificates / "impostor", "client-0"))
        c.sendall(hello())
        assert read_to_end(c) == b""
    with Refusal(node, "identity_mismatch"):  # the same authority, another cluster
        c = connect(node.serving, pair_of(certificates / "shared", "client-1"))
        c.sendall(hello("client-1"))
        assert read_to_end(c) == b""
    with Refusal(node, "bad_certificate"):  # out of date
        c = connect(node.serving, expired_certificate(house, tmp_path))
        c.sendall(hello())
        assert read_to_end(c) == b""
    with Refusal(node, "tls_failed"):  # TLS, but an old one
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(node.serving, good, ssl.TLSVersion.TLSv1_2)
    with Refusal(node, "tls_failed"):  # no TLS
        host, port = node.serving.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), 20)
        plain.sendall(hello())
        assert b"link" not in read_to_end(plain)
    for reason, said in (
        ("identity_mismatch", hello("prefill-9")),                     # another's id
        ("identity_mismatch", hello("client-0", "router")),            # another role
        ("identity_mismatch", hello("prefill-9", "prefill", connection="bulk")),
        ("version_mismatch", hello(version_min=7, version_max=9)),
        ("cell_mismatch", hello(tokenizer="0" * 64)),
        ("cell_mismatch", hello(expect_role="hybrid")),
        ("bad_message", hello(connection="bulk")),
        ("bad_message", sealed(frame(HELLO, {"node_id": 5}), 0)),
        ("bad_frame", sealed(b"\0\0\0\0\1\0\0\0\0\0\0\0", 0)),
        ("bad_frame", sealed(frame(HELLO, {}), 1)),
    ):
        with Refusal(node, reason):
            c = connect(node.serving, good)
            c.sendall(said)
            answer = read_to_end(c)
            assert reason == "bad_frame" or reason.encode() in answer
    # the same, in plain words, for those who are good; and the node serves on
    c = connect(node.serving, good)
    c.sendall(hello())
    assert b'"node_id":"%s-0"' % which.encode() in c.recv(65536)
    c.close()
    secure.post(CHAT, chat("Hello", GREEDY, False, 4))


def test_another_model_or_arithmetic(secure, certificates):
    """Digests of a node with a model: each difference is named."""
    node = secure.decode[0]
    good = pair_of(certificates / "house", "prefill-9")
    c = connect(node.serving, pair_of(certificates / "house", "client-0"))
    c.sendall(hello())
    head = c.recv(65536)[4:]
    n = struct.unpack("<IHHI", head[:12])[3]
    theirs = json.loads(head[12:12 + n])
    c.close()
    cell = {k: theirs[k] for k in ("model", "numerics", "tokenizer", "kv", "max_context_tokens")}
    for field, value, word in (("model", "1" * 64, "model"), ("numerics", "2" * 64, "numerics"),
                               ("kv", {**cell["kv"], "n_layers": 3}, "geometry"), ("max_context_tokens", 99, "context")):
        with Refusal(node, "cell_mismatch"):
            c = connect(node.serving, good)
            c.sendall(hello("prefill-9", "prefill", **{**cell, field: value}))
            assert word.encode() in read_to_end(c)


def test_slow_and_broken_handshakes(secure, certificates):
    """Half a handshake, byte by byte, and connections that say nothing keep nobody out and leave nothing."""
    node = secure.decode[0]
    host, port = node.serving.rsplit(":", 1)
    before = n_files(node)
    silent = [socket.create_connection((host, int(port)), 20) for _ in range(300)]
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    half = context.wrap_bio(ssl.MemoryBIO(), out)
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    said = out.read()
    for i, byte in enumerate(said[:200]):
        silent[-1 - i % 20].sendall(bytes([byte]))
    c = connect(node.serving, pair_of(certificates / "house", "client-0"))
    c.sendall(hello())
    assert b"node_id" in c.recv(65536)
    c.close()
    secure.post(CHAT, chat("Hello", GREEDY, False, 4))
    for s in silent:
        s.close()
    wait_until(lambda: n_files(node) <= before, "sockets are closed")


def test_plain_links_hear_why(hybrid_server):
    """Without TLS: what is no hello is counted by reason, too."""
    decode = Server("--node-role", "decode", "--node-id", "decode-0", "--serving-bind", "127.0.0.1:0", "-t", "1")
    try:
        host, port = decode.serving.rsplit(":", 1)
        for reason, said in (("bad_frame", b"GET / HTTP/1.1\r\n\r\n"), ("bad_frame", b"\x16\x03\x01\x02\x00\x01\x00" * 3),
                             ("version_mismatch", hello(version_min=3, version_max=4)),
                             ("bad_frame", sealed(b"\0\0\x08\0\1\0\0\0\x09\0\0\0", 0)[:16] + b" " * 100000)):
            with Refusal(decode, reason):
                s = socket.create_connection((host, int(port)), 20)
                s.sendall(said)
                read_to_end(s)
    finally:
        decode.stop()


def test_other_certificates_without_a_restart(certificates, tmp_path):
    live = tmp_path / "live"
    shutil.copytree(certificates / "house", live)
    decode = Server("--node-role", "decode", "--node-id", "decode-0", "--serving-bind", "127.0.0.1:0", "-t", "1", "--cluster-dir", live)
    try:
        def answers(folder):
            try:
                c = connect(decode.serving, pair_of(certificates / folder, "client-0"))
                c.sendall(hello())
                return b"node_id" in c.recv(65536)
            except (ssl.SSLError, ConnectionError):
                return False

        assert answers("house") and not answers("impostor")
        (live / "decode-0.key").write_text("nonsense")
        decode.process.send_signal(signal.SIGHUP)
        decode.wait_line("not read again")
        assert answers("house")
        for name in ("ca.crt", "decode-0.crt", "decode-0.key"):
            shutil.copy(certificates / "impostor" / name, live / name)
        decode.process.send_signal(signal.SIGHUP)
        decode.wait_line("certificates read again")
        assert answers("impostor") and not answers("house")
    finally:
        decode.stop()


# ---- flags ----


def serve(*flags):
    return subprocess.run([BIN, "serve", "-m", MODEL, "--check-config", *map(str, flags)], capture_output=True, text=True)


def test_flags(certificates, tmp_path):
    house, far = certificates / "house", tmp_path / "peers"
    far.write_text("prefill 127.0.0.1:1\ndecode 10.0.0.8:2\n")
    decode = ("--node-role", "decode", "--serving-bind")
    ok = serve(*decode, "127.0.0.1:0")
    assert ok.returncode == 0, ok.stderr
    for flags, words in (
        ((*decode, "0.0.0.0:9000"), "--serving-bind 0.0.0.0:9000 is beyond this host"),
        ((*decode, ":9000"), "--insecure-cluster"),
        (("--node-role", "router", "--prefill-peers", "127.0.0.1:1", "--decode-peers", "10.0.0.7:2"), "--decode-peers 10.0.0.7:2"),
        (("--node-role", "router", "--peers", far), "--peers 10.0.0.8:2 is beyond"),
        ((*decode, ":0", "--cluster-ca", house / "ca.crt"), "--cluster-cert is missing"),
        ((*decode, ":0", "--cluster-dir", house), "which one"),
        ((*decode, ":0", "--cluster-dir", house, "--node-id", "decode-77"), "decode-77.crt"),
        ((*decode, ":0", "--cluster-dir", house, "--node-id", "prefill-0"), "is for a prefill node"),
        ((*decode, ":0", "--cluster-dir", house, "--node-id", "decode-0", "--insecure-cluster"), "contradicts"),
        ((*decode, ":0", "--node-id", "decode-9", "--cluster-ca", house / "ca.crt", "--cluster-cert", house / "decode-0.crt",
          "--cluster-key", house / "decode-0.key"), "--node-id says decode-9"),
        ((*decode, ":0", "--cluster-ca", house / "ca.crt", "--cluster-cert", house / "decode-0.crt", "--cluster-key",
          house / "prefill-0.key"), "is not the key of"),
        ((*decode, ":0", "--cluster-ca", certificates / "impostor/ca.crt", "--cluster-cert", house / "decode-0.crt",
          "--cluster-key", house / "decode-0.key"), "was not issued by"),
    ):
        done = serve(*flags)
        assert done.returncode == 2 and words in done.stderr, (flags, done.stderr)
    assert serve(*decode, "0.0.0.0:9000", "--insecure-cluster").returncode == 0
    named = serve(*decode, "0.0.0.0:9000", "--cluster-ca", house / "ca.crt", "--cluster-cert", house / "decode-0.crt",
                  "--cluster-key", house / "decode-0.key")
    assert named.returncode == 0 and "node=decode-0" in named.stdout, named.stderr


def test_cluster_init(tmp_path):
    folder = tmp_path / "c"
    make_certificates(folder, "init", str(folder), "--name", "x1", "--http-names", "localhost,127.0.0.1")
    for name in ("ca", "router-0", "prefill-0", "decode-0", "http"):
        assert (folder / f"{name}.key").stat().st_mode & 0o777 == 0o600
        assert (folder / f"{name}.crt").exists()
    assert folder.stat().st_mode & 0o777 == 0o700
    key = (folder / "ca.key").read_text()
    again = subprocess.run([BIN, "cluster", "init", str(folder)], capture_output=True, text=True)
    assert again.returncode == 2 and "exists" in again.stderr and (folder / "ca.key").read_text() == key
    make_certificates(folder, "add", str(folder), "decode-1", "prefill:east-7")
    assert (folder / "east-7.crt").exists()
    for bad in ("nonsense", "decode-a/b", "decode:", "decode-0"):
        done = subprocess.run([BIN, "cluster", "add", str(folder), bad], capture_output=True, text=True)
        assert done.returncode == 2, (bad, done.stderr)
    assert subprocess.run([BIN, "cluster"], capture_output=True).returncode == 2


def test_roles_with_certificates(tmp_path, hybrid):
    folder = tmp_path / "c"
    make_certificates(folder, "init", str(folder))
    family = Server("--roles", "1p1d", "--cluster-dir", folder)
    try:
        family.wait_healthy()
        body = chat(PROMPTS[0], SAMPLED, True)
        assert canonical.answer(family.post(CHAT, body), True) == canonical.answer(hybrid.post(CHAT, body), True)
        assert family.find(r"listener=serving .*tls=yes"), family.tail()
    finally:
        family.stop()
    # one that is missing is said at once, not by a child that is started again and again
    r = subprocess.run([BIN, "serve", "-m", MODEL, "--port", "0", "--roles", "1p2d", "--cluster-dir", str(folder)], capture_output=True,
                       text=True, timeout=60)
    assert r.returncode == 2 and "decode-1.crt" in r.stderr and "baton cluster add" in r.stderr, r.stderr
