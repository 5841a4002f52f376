"""The first promise inside one node: the bytes do not depend on chunk size, threads, tier, batch, cache or pre-emption."""

import concurrent.futures
import json
import os
import subprocess

import pytest

import canonical
from cluster import BIN, MODEL, Server
from prompts import GREEDY, PROMPTS, SAMPLED

COMPLETIONS = "/v1/completions"
ASKED = [{"prompt": PROMPTS[i], "max_tokens": 12, "logprobs": 5, **(GREEDY, SAMPLED)[i % 2]} for i in (1, 5, 9, 13, 20, 21, 23)]


@pytest.fixture(scope="module")
def expected():
    server = Server("-t", "1")
    out = [canonical.body(server.post(COMPLETIONS, body)) for body in ASKED]
    server.stop()
    return out


def answers(*flags, env=None):
    server = Server(*flags, env=env)
    out = [canonical.body(server.post(COMPLETIONS, body)) for body in ASKED]
    server.check_no_leak()
    server.stop()
    return out


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunk_sizes(expected, chunk):
    asked = ASKED[:5] if chunk == 1 else ASKED
    server = Server("--prefill-chunk", chunk)
    assert [canonical.body(server.post(COMPLETIONS, body)) for body in asked] == expected[: len(asked)]
    server.stop()


def test_threads(expected):
    assert answers("-t", "2") == expected


def test_prefix_hit_is_cold(expected):
    server = Server("-t", "1")
    for _ in range(2):  # the second round reads the pages of the first
        assert [canonical.body(server.post(COMPLETIONS, body)) for body in ASKED] == expected
    assert server.stats()["engine"]["prefix_hit_tokens"] > 0
    server.stop()


def test_preempted_is_undisturbed(expected):
    """Pages for less than what eight answers need: some are pre-empted and computed again."""
    page = 737280
    server = Server("-t", "2", "-c", "2048", "--kv-mem", 66 * page)
    bodies = [{"prompt": PROMPTS[i % 20], "max_tokens": 330, "ignore_eos": True, **(GREEDY, SAMPLED)[i % 2]} for i in range(8)]
    alone = [canonical.body(server.post(COMPLETIONS, body)) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = [canonical.body(data) for data in pool.map(lambda b: server.post(COMPLETIONS, b), bodies)]
    assert together == alone
    assert server.stats()["engine"]["preemptions"] > 0
    server.check_no_leak()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["ref", "avx2"])
def test_tiers(expected, tier):
    env = {"BATON_TIER": tier}
    if tier != "ref" and tier not in open("/proc/cpuinfo").read():
        pytest.skip(f"this CPU has no {tier}")
    server = Server("-t", "2", env=env)
    asked = ASKED[:4] if tier == "ref" else ASKED
    assert [canonical.body(server.post(COMPLETIONS, body)) for body in asked] == expected[: len(asked)]
    server.stop()


def test_run_gives_the_servers_answer(hybrid):
    """The command line and the server are one engine."""
    asked = "Name the largest ocean."
    body = {"messages": [{"role": "user", "content": asked}], "max_tokens": 40, "temperature": 0}
    served = json.loads(hybrid.post("/v1/chat/completions", body))["choices"][0]["message"]["content"]
    ran = subprocess.run([BIN, "run", "-m", MODEL, "-p", asked, "-n", "40"], capture_output=True, text=True, check=True)
    assert ran.stdout == served


def test_score_equals_echo(hybrid):
    """baton score and lm-eval's payload see the same numbers."""
    ids = json.loads(hybrid.post("/tokenize", {"prompt": PROMPTS[20]}))["tokens"][:120]
    body = {"prompt": [ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    logprobs = json.loads(hybrid.post(COMPLETIONS, body))["choices"][0]["logprobs"]["token_logprobs"]
    ran = subprocess.run([BIN, "score", "-m", MODEL, "--top", "1"], input=json.dumps([ids]), capture_output=True, text=True, check=True)
    nexts = json.loads(ran.stdout.splitlines()[0])["next"]
    assert len(logprobs) == len(ids) + 1 and logprobs[0] is None
    assert logprobs[1 : len(ids)] == pytest.approx(nexts, abs=0, rel=1e-7)
