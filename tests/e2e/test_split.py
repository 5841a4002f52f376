"""The first promise: a client of the router receives, byte for byte, what a single process sends."""

import concurrent.futures
import json
import random

import pytest

import canonical
from prompts import GREEDY, PROMPTS, SAMPLED

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat(prompt, sampling, streamed, n=24, **more):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": n, **sampling, **more}
    if streamed:
        body.update(stream=True, stream_options={"include_usage": True})
    return body


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_bytes(hybrid, cluster, sampling, streamed):
    for prompt in PROMPTS:
        body = chat(prompt, sampling, streamed)
        single = canonical.answer(hybrid.post(CHAT, body), streamed)
        split = canonical.answer(cluster.post(CHAT, body), streamed)
        assert split == single, prompt[:60]


@pytest.mark.parametrize("more", [
    {"logprobs": 5},
    {"logprobs": 3, "echo": True},
    {"logprobs": 1, "echo": True, "max_tokens": 1},
    {"echo": True, "max_tokens": 0, "logprobs": 2},
    {"stop": ["\n", "the"]},
    {"max_tokens": 1},
    {"max_tokens": 2},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "seed": 9, "temperature": 1.1},
    {"logit_bias": {"28": -100, "253": 2.5}},
    {"min_tokens": 20, "max_tokens": 24},
    {"ignore_eos": True, "max_tokens": 70},
    {"prompt": ["One", "Two words", "and three more"], "n_unknown": 1},
    {"prompt": [[1, 2, 3, 4], [5, 6]]},
], ids=lambda m: ",".join(f"{k}" for k in m))
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_completions(hybrid, cluster, more, streamed):
    body = {"prompt": PROMPTS[20], "max_tokens": 16, "temperature": 0, **more, "stream": streamed}
    single = canonical.answer(hybrid.post(COMPLETIONS, body), streamed)
    split = canonical.answer(cluster.post(COMPLETIONS, body), streamed)
    if streamed and isinstance(body["prompt"], list):
        # choices of several prompts interleave as they come; each choice's own events must agree
        single, split = by_choice(single), by_choice(split)
    assert split == single


def by_choice(stream):
    events = {}
    for line in stream.split(b"\n"):
        choices = json.loads(line[6:])["choices"] if line.startswith(b"data: {") else []
        events.setdefault(choices[0]["index"] if choices else -1, []).append(line)
    return events


def test_sixteen_in_flight(hybrid, cluster):
    jobs = []
    for i in range(32):
        prompt, sampling, streamed = PROMPTS[i % len(PROMPTS)], (GREEDY, SAMPLED)[i % 2], bool(i % 3)
        jobs.append((chat(prompt, sampling, streamed, n=16 + i), streamed))
    alone = [canonical.answer(hybrid.post(CHAT, body), streamed) for body, streamed in jobs]
    for server in (hybrid, cluster):
        order = list(range(len(jobs)))
        random.Random(7).shuffle(order)
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            futures = {i: pool.submit(server.post, CHAT, jobs[i][0]) for i in order}
            for i, future in futures.items():
                assert canonical.answer(future.result(), jobs[i][1]) == alone[i], jobs[i][0]


def test_usage_and_finish(cluster):
    body = json.loads(cluster.post(CHAT, chat("Count to three.", GREEDY, False, n=200)))
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    body = json.loads(cluster.post(CHAT, chat("Count to three.", GREEDY, False, n=3)))
    assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 3


def test_the_work_is_split(cluster):
    """Prefill computes the prompt and one token; decode computes no prompt token at all."""
    before = [w.stats()["engine"] for w in cluster.workers]
    body = json.loads(cluster.post(CHAT, chat("Tell me about the sea. " * 20, GREEDY, False, n=20)))
    usage = body["usage"]
    after = [w.stats()["engine"] for w in cluster.workers]
    computed = [b["prompt_tokens_computed"] - a["prompt_tokens_computed"] for a, b in zip(before, after)]
    sampled = [b["tokens_sampled"] - a["tokens_sampled"] for a, b in zip(before, after)]
    assert computed[0] <= usage["prompt_tokens"] and computed[0] > 0 and computed[1] == 0
    assert sampled == [1, usage["completion_tokens"] - 1]


def test_bytes_on_the_wire(cluster):
    before = cluster.prefill[0].stats()["handoff_sent"]
    # a prompt of its own, so that no page of it is cached at the decode node
    cluster.post(CHAT, chat("unique prompt 8172 " * 60, GREEDY, False, n=4))
    after = cluster.prefill[0].stats()["handoff_sent"]
    raw = after["slab_bytes"] - before["slab_bytes"]
    wire = after["wire_bytes"] - before["wire_bytes"]
    assert raw > 0 and wire <= 1.02 * raw
