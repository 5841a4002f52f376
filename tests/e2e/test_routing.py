"""Which nodes a request goes to: prefixes, load, turns."""

import threading
import time

import pytest

import canonical
from cluster import Cluster, wait_until

CHAT = "/v1/chat/completions"
LONG = "You are a guide of the harbour museum. " + " ".join(f"Room {i} shows ship number {i * 7 % 101} of the fleet." for i in range(90))


def ask(question, **more):
    return {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": question}], "max_tokens": 8,
            "temperature": 0, **more}


def total(servers, *path):
    n = 0
    for s in servers:
        value = s.stats()
        for p in path:
            value = value[p]
        n += value
    return n


def bulk_sent(cluster):
    return sum(link["bulk_bytes_sent"] for p in cluster.prefill for link in p.stats()["links"].values() if link["role"] == "decode")


def test_a_shared_prefix_finds_its_nodes_and_is_not_sent_again():
    cluster = Cluster(n_prefill=2, n_decode=2)
    first = canonical.body(cluster.post(CHAT, ask("Where is ship 14?")))
    sent_whole, computed = bulk_sent(cluster), total(cluster.prefill, "engine", "prompt_tokens_computed")
    time.sleep(2.5)  # the nodes say once a second what they hold
    questions = [f"Where is ship {i}?" for i in (21, 28, 35, 42)]
    for q in questions:
        cluster.post(CHAT, ask(q))
    # the same pair each time: a tail of pages is computed and sent, not the prefix
    assert total(cluster.prefill, "engine", "prompt_tokens_computed") - computed < 0.15 * len(questions) * computed
    assert bulk_sent(cluster) - sent_whole < 0.15 * len(questions) * sent_whole
    assert sum(p.stats()["engine"]["prompt_tokens_computed"] > 0 for p in cluster.prefill) == 1
    assert canonical.body(cluster.post(CHAT, ask("Where is ship 14?"))) == first
    cluster.check_no_leak()
    cluster.stop()


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
def test_other_policies(policy):
    cluster = Cluster(n_prefill=2, n_decode=2, router_flags=["--policy", policy])
    answers = {canonical.body(cluster.post(CHAT, ask("Where is ship 14?"))) for _ in range(4)}
    assert len(answers) == 1
    busy = [p.stats()["engine"]["prompt_tokens_computed"] for p in cluster.prefill]
    if policy == "round-robin":
        assert busy[0] == busy[1] > 0
    cluster.check_no_leak()
    cluster.stop()


def busy_cluster(**flags):
    """A cluster whose prefill node has long prompts to read for a while."""
    cluster = Cluster(flags=("-np", "8", "-c", "4096"), **flags)
    stop = threading.Event()

    def keep_busy(n):
        i = 0
        while not stop.is_set():
            i += 1
            ids = [1000 + (j * 37 + (1000 * n + i) * 1009) % 40000 for j in range(600)]
            cluster.post("/v1/completions", {"prompt": [ids], "max_tokens": 1})

    threads = [threading.Thread(target=keep_busy, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()

    def end():
        stop.set()
        for t in threads:
            t.join()
        cluster.check_no_leak()
        cluster.stop()

    wait_until(lambda: cluster.prefill[0].stats()["engine"]["running"] > 0, "a long prompt")
    return cluster, end


QUICK = [
    {"prompt": "The harbour", "max_tokens": 20, "temperature": 0},
    {"prompt": "The harbour", "max_tokens": 20, "temperature": 0, "logprobs": 3, "echo": True},
    {"prompt": "Ships", "max_tokens": 1, "temperature": 0.8, "seed": 4},
    {"prompt": "One two three", "max_tokens": 40, "temperature": 1, "seed": 11, "stop": [" four", "\n"], "presence_penalty": 0.5},
    {"prompt": "Old", "max_tokens": 12, "temperature": 0.9, "seed": 5, "logprobs": 2},
]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_short_prompt_does_not_wait_behind_long_ones(hybrid, streamed):
    expected = [canonical.answer(hybrid.post("/v1/completions", {**q, "stream": streamed}), streamed) for q in QUICK]
    cluster, end = busy_cluster()
    try:
        for q, e in zip(QUICK, expected):
            assert canonical.answer(cluster.post("/v1/completions", {**q, "stream": streamed}), streamed) == e, q
        assert cluster.router.stats()["local"] >= len(QUICK)
    finally:
        end()


def test_a_prompt_that_the_decode_node_has_is_not_read_again(hybrid):
    cluster, end = busy_cluster()
    try:
        first = canonical.body(cluster.post(CHAT, ask("Where is ship 14?")))
        time.sleep(2.5)  # the decode node has said what it holds
        before = cluster.router.stats()["local"]
        assert canonical.body(cluster.post(CHAT, ask("Where is ship 14?"))) == first
        assert cluster.router.stats()["local"] == before + 1
        assert first == canonical.body(hybrid.post(CHAT, ask("Where is ship 14?")))
    finally:
        end()


@pytest.mark.parametrize("old", ["router", "nodes"])
def test_an_older_version_on_one_side(hybrid, old):
    """As in an upgrade: what both sides speak is used, and no answer changes."""
    one = ["--protocol-max", "1"]
    cluster, end = busy_cluster(**({"router_flags": one} if old == "router" else {"prefill_flags": one, "decode_flags": one}))
    try:
        expected = canonical.answer(hybrid.post("/v1/completions", QUICK[0]), False)
        assert canonical.answer(cluster.post("/v1/completions", QUICK[0]), False) == expected
        assert cluster.router.stats()["local"] == 0
    finally:
        end()
