"""The bytes of an answer that must not depend on where it was made: everything but `id`, `created`, `prompt_tokens_details`
and SSE comments (headers are not part of the body)."""

import json


def _strip(value):
    if isinstance(value, dict):
        return {k: _strip(v) for k, v in value.items() if k not in ("id", "created", "prompt_tokens_details")}
    if isinstance(value, list):
        return [_strip(v) for v in value]
    return value


def body(data):
    """A whole response."""
    return json.dumps(_strip(json.loads(data)), ensure_ascii=False).encode()


def stream(data):
    """A streamed one: its events, one by one, in order."""
    out = []
    for event in data.split(b"\n\n"):
        lines = [l for l in event.split(b"\n") if l and not l.startswith(b":")]
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                out.append(b"data: " + body(line[6:]))
            else:
                out.append(line)
    return b"\n".join(out)


def answer(data, streamed):
    return stream(data) if streamed else body(data)


def text_of(data, streamed):
    """What a reader sees."""
    if not streamed:
        choice = json.loads(data)["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"]
    out = []
    for event in data.split(b"\n\n"):
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            for choice in json.loads(event[6:])["choices"]:
                out.append(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
    return "".join(out)
