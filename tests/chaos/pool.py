"""What the streams ask for: some forty requests of every kind, and what an undisturbed process answers to each."""

import hashlib

import canonical
from prompts import GREEDY, PROMPTS, SAMPLED

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HOT = {"temperature": 1.1, "top_p": 0.9, "min_p": 0.02, "seed": 77, "repetition_penalty": 1.15, "presence_penalty": 0.3}
_SHORTER = {22: PROMPTS[22][:3800], 23: PROMPTS[23][:1900]}  # about 900 and 700 tokens
TEXTS = [_SHORTER.get(i, p) for i, p in enumerate(PROMPTS)]
_LENGTHS = (1, 2, 5, 16, 33, 48, 64, 96)


class Ask:
    """One request of the pool."""

    def __init__(self, name, path, body):
        self.name, self.path, self.body, self.streamed = name, path, body, bool(body.get("stream"))
        self.digest = self.silence_s = self.n_events = None  # undisturbed

    def digest_of(self, data):
        return hashlib.sha256(canonical.answer(data, self.streamed)).hexdigest()


def _chat(prompt, n, streamed, **more):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": n, **more}
    if streamed:
        body.update(stream=True, stream_options={"include_usage": True})
    return CHAT, body


def _completion(prompt, n, streamed, **more):
    return COMPLETIONS, {"prompt": prompt, "max_tokens": n, "stream": streamed, **more}


def _asks():
    for i, prompt in enumerate(TEXTS):
        sampling, n, streamed = (GREEDY, SAMPLED, HOT)[i % 3], _LENGTHS[(i * 5 + 3) % len(_LENGTHS)], i % 4 != 3
        yield _chat(prompt, n, streamed, **sampling)
    yield _completion(TEXTS[20], 24, True, logprobs=5, **GREEDY)
    yield _completion(TEXTS[5], 40, True, logprobs=2, **HOT)
    yield _completion(TEXTS[6], 12, False, logprobs=3, echo=True, **GREEDY)
    yield _completion(TEXTS[21], 8, True, logprobs=1, echo=True, **SAMPLED)
    yield _chat(TEXTS[4], 48, True, logprobs=True, top_logprobs=4, **SAMPLED)
    yield _chat(TEXTS[8], 30, False, logprobs=True, top_logprobs=2, **GREEDY)
    yield _completion(TEXTS[2], 96, True, stop=["\n", " king"], **GREEDY)
    yield _completion(TEXTS[1], 96, True, stop=["the end of the"], **SAMPLED)
    yield _completion(TEXTS[2], 96, True, ignore_eos=True, **GREEDY)
    yield _completion(TEXTS[13], 96, True, ignore_eos=True, **HOT)
    yield _completion(TEXTS[22], 80, True, ignore_eos=True, **SAMPLED)
    yield _completion(TEXTS[23], 64, True, ignore_eos=True, **GREEDY)
    yield _completion(TEXTS[21], 90, True, ignore_eos=True, min_tokens=80, **SAMPLED)
    yield _completion(TEXTS[16], 40, True, logit_bias={"28": -100, "253": 2.5}, **GREEDY)
    yield _completion([1, 2, 3, 4, 5, 6, 7], 32, False, **SAMPLED)
    yield _completion(TEXTS[20], 1, False, **GREEDY)
    yield _completion(TEXTS[22], 2, True, **SAMPLED)
    yield _chat(TEXTS[22] + TEXTS[20] + " Which runner came last?", 60, True, **HOT)
    yield _chat(TEXTS[23] + "\nName three.", 72, True, **SAMPLED)


POOL = [Ask(f"ask-{i}", *a) for i, a in enumerate(_asks())]
SMALL = [POOL[i] for i in (0, 3, 7, 8, 15, 20, 24, 26, 28, 30, 32, 33)]


def learn(server, asks):
    """What each answers when nothing is wrong and nobody else is there."""
    from client import Stream

    for ask in asks:
        if ask.digest:
            continue
        s = Stream(server.url, ask, f"undisturbed-{ask.name}")
        s.start()
        s.join(180)
        assert s.status == 200 and not s.error, (ask.name, s.status, s.error, s.data[:300])
        ask.digest, ask.silence_s, ask.n_events = ask.digest_of(s.data), s.silence_s(), s.n_events
