"""Which nodes a request goes to: prefixes, load, turns."""

import time

import pytest

import canonical
from cluster import Cluster

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
