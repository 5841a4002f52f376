"""Ids of `baton tokenize` against Hugging Face's `tokenizers`, over every Unicode plane, many languages and random bytes.

The program is $BATON_BIN (build/release/baton); the tokenizers are those of $BATON_SHARED (../shared). What is not there is
skipped with its name."""
import functools
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from text_py import vocab_gguf  # noqa: E402

BIN = pathlib.Path(os.environ.get("BATON_BIN", ROOT / "build" / "release" / "baton"))
SHARED = pathlib.Path(os.environ.get("BATON_SHARED", ROOT.parent / "shared"))
# pre-tokenizer, folder of the reference
FAMILIES = {"smollm": "smollm2", "gpt-2": "smollm2", "llama-bpe": "llama3_1", "qwen2": "qwen3"}

SENTENCES = [
    "Hello, world! It's 12345 o'clock; they'LL say we'Ve DON'T I'M he'D 'ſ 'S",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Ünïcödé ĲSSELMEER ﬁ ﬂ ß ẞ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, Ђорђе",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ἀρχῇ ἦν ὁ λόγος",
    "我能吞下玻璃而不傷身體。私はガラスを食べられます。それは私を傷つけません。が ガ",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요 각 한글",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني. ١٢٣٤ ۱۲۳۴ بِسْمِ ٱللَّهِ",
    "אני יכול לאכול זכוכית וזה לא מזיק לי. שָׁלוֹם",
    "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती. १२३ क़ ख़",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ ๑๒๓ ກຂຄ မြန်မာ ខ្មែរ བོད་ཡིག",
    "நான் கண்ணாடி சாப்பிடுவேன் ೧೨೩ കേരളം ગુજરાતી ਪੰਜਾਬੀ বাংলা",
    "Tôi có thể ăn thủy tinh mà không hại gì. e\u0301 o\u0302\u0323 a\u0323\u0302 \u1ea7 A\u030a \u212b \u2126 \u0344",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇵🇱 1️⃣ ☃️ 𝒳𝓎𝔷 𝟘𝟙 ½ ² Ⅻ ⑳ ㈱ 𐌰𐌱 𓀀",
    "def f(x):\n\treturn {\n\t\t'a': x**2,   # comment\n\t}\r\n\r\n\r\n   \n\n  end",
    "  leading, trailing   \n\n\n \t \t\n\u00a0\u3000\u2003x\u0085y\u2028z\u180e\u200b ",
    "12 123 1234 12345 123456 1234567 ١٢٣٤٥ 1a2b3c v1.2.3 3.14159e-10 0xDEADBEEF",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|eot_id|><think>x</think><tool_call><|im_en",
    "!!!??? ... --- === *** ___ ###\n\n//// \\\\ `~@$%^&*()[]{}|;:\",.<>/?",
    "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x1c\x1d\x1e\x1f\x7f",
]


@functools.lru_cache(maxsize=1)
def corpus():
    return list(texts())


def texts():
    rng = random.Random(20240229)
    yield from SENTENCES
    yield "".join(SENTENCES)
    # planes 0, 1 and 14 whole; of ideographs every 7th, of planes without characters every 97th
    step = {0: 1, 1: 1, 2: 7, 3: 7, 14: 1}
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c % step.get(c >> 16, 97) == 0]
    # each code point three ways: alone between spaces, glued to letters, glued to digits and marks
    for glue in ("{} ", "a{}b ", "1{}2\n{}{}\t"):
        for base in range(0, len(points), 65536):
            yield "".join(glue.replace("{}", chr(c)) for c in points[base : base + 65536])
    marks = [0x300, 0x301, 0x302, 0x307, 0x308, 0x30A, 0x323, 0x327, 0x328, 0x334, 0x345, 0x591, 0x5B4, 0x64B, 0x651, 0x93C, 0x94D,
             0x3099, 0x309A, 0x1161, 0x11A8, 0x1DF6, 0x8D3, 0x11930, 0x1D165, 0x1D16E]
    bases = [0x41, 0x61, 0xC5, 0x1EA0, 0x3B1, 0x438, 0x5D0, 0x627, 0x915, 0x304B, 0x1100, 0xAC00, 0xFB1D, 0x1D157, 0x2126, 0xF900]
    yield "".join(chr(rng.choice(bases)) + "".join(chr(rng.choice(marks)) for _ in range(rng.randrange(5))) for _ in range(20000))
    yield "e" + "".join(chr(rng.choice(marks[:10])) for _ in range(3000))
    spaces = " \t\n\r\x0b\x0c\x85\u00a0\u1680\u2003\u2028\u3000"
    yield "".join(rng.choice(["a", "1", "!", "'s", "'S", "é", "٣"] + list(spaces) * 2) for _ in range(60000))
    for _ in range(40):
        plane = rng.choice([0, 0, 0, 1, 1, 2, 3, 14, 15, 16])
        chars = [chr(c) for c in (rng.randrange(plane << 16, (plane + 1) << 16) for _ in range(300)) if not 0xD800 <= c < 0xE000]
        yield "".join(rng.choice([rng.choice(chars), rng.choice(spaces), rng.choice("abc019'!")]) for _ in range(3000))
    yield "a" * 20000 + "abc" * 5000 + " " * 3000 + "\n" * 999 + "x" + "=" * 4000 + "é" * 3000
    for word in ("the", "tion", "                ", "\n\n", "----", "字"):
        yield word * 1500


def reference(family):
    tokenizers = pytest.importorskip("tokenizers", reason="the package `tokenizers` is not installed")
    source = SHARED / "tokenizers" / FAMILIES[family] / "tokenizer.json"
    if not source.exists():
        pytest.skip(f"{source} is not there")
    t = tokenizers.Tokenizer.from_file(str(source))
    if family == "gpt-2":
        t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return t, source


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    if not BIN.exists():
        pytest.skip(f"{BIN} is not built")
    t, source = reference(request.param)
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    vocab_gguf.from_tokenizer_json(source, path, request.param)
    return request.param, t, path


def run(path, data, *args):
    r = subprocess.run([BIN, "tokenize", "-m", path, *args], input=data, capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return r.stdout


def ids_of(path, data, *args):
    return json.loads(run(path, data, "--json", *args))


def first_difference(t, path, text, args):
    """The shortest prefix-free stretch that still differs, for a message that a person can use."""
    while len(text) > 1:
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            if t.encode(part, add_special_tokens=False).ids != ids_of(path, part.encode(), *args):
                text = part
                break
        else:
            break
    return text


@pytest.mark.parametrize("special", [False, True])
def test_ids_equal(family, special):
    _, t, path = family
    t.encode_special_tokens = not special
    args = ["--special"] if special else []
    for text in SENTENCES if special else corpus():
        want = t.encode(text, add_special_tokens=False).ids
        got = ids_of(path, text.encode(), *args)
        if want != got:
            part = first_difference(t, path, text, args)
            pytest.fail(f"{part[:200]!r}: {t.encode(part, add_special_tokens=False).ids[:50]} is right, got {ids_of(path, part.encode(), *args)[:50]}")


def test_round_trip(family):
    name, t, path = family
    for text in SENTENCES + corpus()[len(SENTENCES) :: 3]:
        want = t.normalizer.normalize_str(text) if t.normalizer else text
        data = want.encode()
        if name in ("smollm", "gpt-2"):  # some bytes have no token there: `tokenizers` drops them, so do we
            data = drop_missing(t, data)
        assert run(path, run(path, text.encode()), "--decode") == data


def test_any_bytes(family):
    name, t, path = family
    rng = random.Random(7)
    for n in (1, 2, 3, 10, 1000, 100000):
        for alphabet in (range(256), [0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 0x80, 0x61, 0x20, 0xFF, 0xC0]):
            data = bytes(rng.choice(alphabet) for _ in range(n))
            ids = run(path, data)
            back = run(path, ids, "--decode")
            want = data
            if name == "qwen2":
                want = b"".join(t.normalizer.normalize_str(p).encode() if isinstance(p, str) else p for p in stretches(data))
            elif name in ("smollm", "gpt-2"):
                want = drop_missing(t, data)
            assert back == want


def stretches(data):
    """Well-formed stretches as str, other bytes one by one."""
    parts = re.split("([\udc80-\udcff])", data.decode("utf-8", "surrogateescape"))
    return [p.encode("utf-8", "surrogateescape") if i % 2 else p for i, p in enumerate(parts)]


def drop_missing(t, data):
    table = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    char_of = {b: chr(b) for b in table}
    for k, b in enumerate(b for b in range(256) if b not in char_of):
        char_of[b] = chr(256 + k)
    present = {b for b in range(256) if t.token_to_id(char_of[b]) is not None}
    return bytes(b for b in data if b in present)
