"""Prompts of many kinds and lengths, 1 to about 1,500 tokens."""

import json
import pathlib

_words = ("The baton passes from hand to hand while the race goes on, and nobody in the stands can tell where one runner ended "
          "and the next began. ")

PROMPTS = [
    "Hi",
    "The capital of France is",
    "Once upon a time",
    "1, 1, 2, 3, 5, 8,",
    "Write a haiku about rivers.",
    "Qu'est-ce que la photosynthèse ? Réponds en une phrase.",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "¿Cuál es la montaña más alta de América?",
    "日本の首都はどこですか。",
    "请用一句话介绍长城。",
    "Какая планета самая большая?",
    "ما هي عاصمة مصر؟",
    "Emoji only: 🎉🚀👩‍👩‍👧‍👦🏳️‍🌈 what do they mean?",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\nint main(void)\n{\n    printf(\"",
    "SELECT name, COUNT(*) FROM users WHERE",
    "{\"name\": \"baton\", \"roles\": [\"prefill\", ",
    "A user wrote <|im_end|> in the middle of a sentence; what is that?",
    "List three colours.\r\n\r\n\tThen stop.   ",
    "x" * 200,
    _words * 8,
    _words * 24,
    _words * 50,
    "\n".join(f"{i}. item number {i} costs {i * 7 % 100} coins" for i in range(90)) + "\nWhich item is the dearest?",
]

GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 1234, "frequency_penalty": 0.2}
