"""Attacks by texts that take long to tokenise."""

import threading
import time
from collections.abc import Callable

from tests.e2e.hostile.target import Attack, Target

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
MB = 1_000_000
TOO_LONG = ("400", "413")
TAKEN = ("200", "400", "413", "429", "503")

PATHOLOGICAL = {
    "one letter": "a",
    "spaces": " ",
    "line ends": "\n",
    "combining marks": "\u0301",
    "emoji joined": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "digits": "0123456789",
    "no spaces": "\u4e2d\u6587",
    "brackets": "({[<",
    "mixed case": "aA1 _-",
    "special tokens": "<|endoftext|>",
}


def mixed_text(num_bytes: int) -> str:
    words = "The king, my lord, hath 42 ships; and so adieu!\n"
    return (words * (num_bytes // len(words) + 1))[:num_bytes]


def beside_short_prompt(attack: Callable[[Target], None]) -> Callable[[Target], None]:
    """Return the attack, which also measures how long a short prompt of another tenant takes alone
    and beside it."""

    def run(target: Target) -> None:
        target.figures["short prompt alone"] = _seconds_of_short_prompt(target)
        attacking = threading.Thread(target=attack, args=(target,))
        attacking.start()
        time.sleep(0.3)
        longest_s = 0.0
        while True:
            longest_s = max(longest_s, _seconds_of_short_prompt(target))
            if not attacking.is_alive():
                break
            time.sleep(0.2)
        attacking.join()
        target.figures["short prompt beside"] = longest_s

    return run


def _seconds_of_short_prompt(target: Target) -> float:
    began = time.monotonic()
    target.as_other(COMPLETIONS, {"prompt": "What news?", "max_tokens": 1})
    return time.monotonic() - began


def many_texts(target: Target) -> None:
    body = {"prompt": mixed_text(MB)}
    target.together([lambda: target.post(TOKENIZE, body)] * 18, num_threads=18)


def one_text(target: Target) -> None:
    target.post(TOKENIZE, {"prompt": mixed_text(8 * MB)})


def small_texts(target: Target) -> None:
    body = {"prompt": mixed_text(40_000)}
    target.together([lambda: target.post(TOKENIZE, body)] * 200)


def pathological_texts(target: Target) -> None:
    for text in PATHOLOGICAL.values():
        for end in ("", "x", "\u00e9"):
            prompt = text * (300_000 // len(text.encode())) + end
            target.post(TOKENIZE, {"prompt": prompt})


def long_prompts(target: Target) -> None:
    """Send prompts that no context holds, to be refused by their length alone."""
    for prompt in (mixed_text(7 * MB), "a" * 7 * MB, [mixed_text(MB)] * 7):
        target.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
    messages = [{"role": "user", "content": mixed_text(7 * MB)}]
    target.post(CHAT, {"messages": messages, "max_tokens": 1})


def many_long_prompts(target: Target) -> None:
    body = {"prompt": [mixed_text(6000)] * 1024, "max_tokens": 1}
    target.together([lambda: target.post(COMPLETIONS, body)] * 6, num_threads=6)


def token_strings(target: Target) -> None:
    target.post(TOKENIZE, {"prompt": "x " * 500_000, "return_token_strs": True})


def many_tokens(target: Target) -> None:
    target.post(DETOKENIZE, {"tokens": [300 + index % 1000 for index in range(1_400_000)]})


ATTACKS = (
    Attack(
        "many long texts",
        "18 `/tokenize` of 1 MB at once",
        TAKEN,
        beside_short_prompt(many_texts),
        limit_s=120,
    ),
    Attack("one very long text", "`/tokenize` of 8 MB", TAKEN, beside_short_prompt(one_text), 120),
    Attack("many texts", "200 `/tokenize` of 40 kB", TAKEN, beside_short_prompt(small_texts)),
    Attack("pathological texts", "30 `/tokenize` of 300 kB", TAKEN, pathological_texts),
    Attack(
        "long prompts", "4 completions of 7 MB", TOO_LONG, beside_short_prompt(long_prompts), 120
    ),
    Attack(
        "lists of long prompts",
        "6 completions of 1,024 prompts of 6 kB",
        TAKEN,
        beside_short_prompt(many_long_prompts),
        120,
    ),
    Attack("token strings", "500,000 tokens told as text", TAKEN, token_strings),
    Attack("many tokens", "`/detokenize` of 1.4 million", TAKEN, many_tokens),
)
