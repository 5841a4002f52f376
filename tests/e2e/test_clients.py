"""Real clients against a single node and against a router with its nodes: the `openai` package, and lm-eval's exact payload."""

import json

import pytest

import canonical
from prompts import PROMPTS

openai = pytest.importorskip("openai")


@pytest.fixture(params=["hybrid", "cluster"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name three rivers."}]


def test_chat(client):
    answer = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=32, temperature=0)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    stream = client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=32, temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == answer.choices[0].finish_reason


def test_completions(client):
    answer = client.completions.create(model="any", prompt="The first prime numbers are", max_tokens=16, temperature=0, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens
    stream = client.completions.create(model="any", prompt="The first prime numbers are", max_tokens=16, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream) == answer.choices[0].text


def test_errors_are_openais(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="any", messages=MESSAGES, temperature=-1)
    assert e.value.body["param"] == "temperature"
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="any", prompt="word " * 9000, max_tokens=1)
    assert e.value.body["code"] == "context_length_exceeded"


def test_models(client):
    model = client.models.list().data[0]
    assert client.models.retrieve(model.id).id == model.id


def lm_eval_payload(ids):
    return {"model": "any", "prompt": [ids], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def test_lm_eval_payload_is_the_same_everywhere(hybrid, cluster):
    """Sums equal to the last digit, hybrid and split, alone and together, and as baton score gives them."""
    import concurrent.futures

    items = [json.loads(hybrid.post("/tokenize", {"prompt": p}))["tokens"][:200] for p in PROMPTS[:22]]
    items = [ids for ids in items if len(ids) > 1]

    def logprobs(server, ids):
        choice = json.loads(server.post("/v1/completions", lm_eval_payload(ids)))["choices"][0]
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == len(ids) + 1
        return choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]

    alone = [logprobs(hybrid, ids) for ids in items]
    for server in (hybrid, cluster):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(lambda ids: logprobs(server, ids), items)) == alone
    several = json.loads(cluster.post("/v1/completions", {**lm_eval_payload(items[0]), "prompt": items[:8]}))["choices"]
    assert [(c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]) for c in several] == alone[:8]


def test_split_chat_is_hybrid_chat(hybrid, cluster):
    body = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0.7, "seed": 5, "logprobs": True, "top_logprobs": 3}
    assert canonical.body(hybrid.post("/v1/chat/completions", body)) == canonical.body(cluster.post("/v1/chat/completions", body))
