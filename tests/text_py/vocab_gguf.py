"""Writes a GGUF file that holds nothing but the vocabulary of a Hugging Face tokenizer.json."""
import json
import struct

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def _string(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def _entry(key, kind, payload):
    return _string(key) + struct.pack("<I", kind) + payload


def _strings(key, items):
    return _entry(key, 9, struct.pack("<IQ", 8, len(items)) + b"".join(map(_string, items)))


def write(path, tokens, kinds, merges, pre, bos=None, eos=None, template=None):
    entries = [
        _entry("general.architecture", 8, _string("llama")),
        _entry("tokenizer.ggml.model", 8, _string("gpt2")),
        _entry("tokenizer.ggml.pre", 8, _string(pre)),
        _strings("tokenizer.ggml.tokens", tokens),
        _entry("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, len(kinds)) + struct.pack("<%di" % len(kinds), *kinds)),
        _strings("tokenizer.ggml.merges", merges),
    ]
    if bos is not None:
        entries.append(_entry("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", bos)))
    if eos is not None:
        entries.append(_entry("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", eos)))
    if template is not None:
        entries.append(_entry("tokenizer.chat_template", 8, _string(template)))
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))


def from_tokenizer_json(source, path, pre, template=None):
    with open(source, encoding="utf-8") as f:
        d = json.load(f)
    vocab = dict(d["model"]["vocab"])
    added = {a["content"]: a for a in d["added_tokens"]}
    for a in d["added_tokens"]:
        vocab[a["content"]] = a["id"]
    n = max(vocab.values()) + 1
    tokens, kinds = ["[PAD%d]" % i for i in range(n)], [UNUSED] * n
    for text, i in vocab.items():
        tokens[i] = text
        kinds[i] = NORMAL if text not in added else CONTROL if added[text]["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in d["model"]["merges"]]
    ids = {name: vocab.get(name) for name in ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|begin_of_text|>", "<|eot_id|>")}
    bos = next((i for i in (ids["<|begin_of_text|>"], ids["<|im_start|>"]) if i is not None), None)
    eos = next((i for i in (ids["<|eot_id|>"], ids["<|im_end|>"], ids["<|endoftext|>"]) if i is not None), None)
    write(path, tokens, kinds, merges, pre, bos, eos, template)
