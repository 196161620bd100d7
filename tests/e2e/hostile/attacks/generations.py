"""Attacks by generations that ask for much, and by an engine that is stopped or killed."""

import os
import signal
import threading
from collections.abc import Callable

from tests.e2e.hostile.target import LEFT, Attack, Target

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TAKEN = (LEFT, "200", "400", "413", "429", "503", "504")
STOPPED_S = 10.0


def stop_prompts() -> dict[str, object]:
    """Return a body of 25 KB: 1,024 prompts and 16 stop strings of 1,024 characters."""
    stops = [chr(97 + index) * 1024 for index in range(16)]
    return {"prompt": ["x"] * 1024, "stop": stops, "max_tokens": 1}


def stop_tables(target: Target) -> None:
    target.post(COMPLETIONS, stop_prompts())


def four_stop_tables(target: Target) -> None:
    target.together([lambda: target.post(COMPLETIONS, stop_prompts())] * 4, num_threads=4)


def output_logprobs(target: Target) -> None:
    body = {"prompt": ["x"] * 1024, "max_tokens": 1000, "logprobs": 20, "ignore_eos": True}
    target.post(COMPLETIONS, body)


def prompt_logprobs(target: Target) -> None:
    """Ask for the log probabilities of prompts that fill the context, with alternatives for each
    token."""
    prompts = [[300 + (index * place) % 1000 for place in range(1000)] for index in range(200)]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 20, "echo": True}
    target.post(COMPLETIONS, body)


def many_choices(target: Target) -> None:
    body = {"prompt": "x", "n": 128, "max_tokens": 100, "logprobs": 20, "stream": True}
    body |= {"ignore_eos": True, "stop_token_ids": list(range(256)), "min_tokens": 100}
    target.together([lambda: target.post(COMPLETIONS, body)] * 4, num_threads=4)


def full_queue(target: Target) -> None:
    body = {"prompt": ["x"] * 128, "max_tokens": 1}
    target.together([lambda: target.post(COMPLETIONS, body)] * 32)


def deadlines(target: Target) -> None:
    body = {"prompt": ["x"] * 64, "max_tokens": 900, "ignore_eos": True, "deadline_ms": 200}
    target.together([lambda: target.post(COMPLETIONS, body)] * 16)


def piled_on_stopped_engine(target: Target) -> None:
    """Send 64 prompts with 1,024 biases each, again and again, while the engine takes nothing."""
    bias = {str(index): -1.5 for index in range(1024)}
    body = {"prompt": ["x"] * 64, "logit_bias": bias, "max_tokens": 1}
    stopped(target, lambda: target.together([lambda: target.post(COMPLETIONS, body)] * 64))


def stopped_engine(target: Target) -> None:
    """Stop the engine while streams are under way, which go on after it."""
    body = {"prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True}
    stopped(target, lambda: target.together([lambda: target.post(COMPLETIONS, body)] * 32))


def stopped(target: Target, attack: Callable[[], None]) -> None:
    os.kill(target.engine_pid, signal.SIGSTOP)
    attacking = threading.Thread(target=attack)
    try:
        attacking.start()
        target.pause(STOPPED_S)
    finally:
        os.kill(target.engine_pid, signal.SIGCONT)
    attacking.join()


def killed_engine(target: Target) -> None:
    body = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
    calls = [lambda: target.post(COMPLETIONS, body)] * 16
    attacking = threading.Thread(target=target.together, args=(calls,))
    attacking.start()
    target.pause(1)
    os.kill(target.engine_pid, signal.SIGKILL)
    attacking.join()
    target.post(COMPLETIONS, body)


def foreign_timelines(target: Target) -> None:
    """Ask for timelines of another tenant, whose id is known."""
    known = "id-of-the-others"
    body = {"prompt": "x", "max_tokens": 2}
    target.as_other(COMPLETIONS, body, X_Request_Id=known)
    for name in (known, f"{known}-0", known.upper(), "%2e%2e/" + known, "x" * 50_000, ""):
        target.get(f"/v1/requests/{name}")


def foreign_pages(target: Target) -> None:
    """Send what a browser sends for a page of another site, to a server that has keys."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
        body = {"prompt": "x", "max_tokens": 1}
        target.post(COMPLETIONS, body, Origin=origin, Authorization="none")


ATTACKS = (
    Attack("stop strings", "1,024 prompts with 16 stop strings of 1 kB", TAKEN, stop_tables, 120),
    Attack("stop strings, four times", "the same, four at once", TAKEN, four_stop_tables, 120),
    Attack(
        "log probabilities of outputs",
        "1,024 prompts x 1,000 tokens x 20",
        TAKEN,
        output_logprobs,
        30,
    ),
    Attack(
        "log probabilities of prompts", "200 prompts x 1,000 tokens x 20", TAKEN, prompt_logprobs
    ),
    Attack("many choices", "4 streams of 128 x 100 tokens x 20", TAKEN, many_choices),
    Attack("full queue", "4,096 prompts at once", TAKEN, full_queue),
    Attack("deadlines", "16 requests of 64 prompts that have 200 ms", TAKEN, deadlines),
    Attack(
        "piled on a stopped engine",
        "64 requests of 64 prompts with 1,024 biases",
        TAKEN,
        piled_on_stopped_engine,
        stops_engine=True,
    ),
    Attack(
        "stopped engine",
        "SIGSTOP for 10 s, 32 streams",
        TAKEN,
        stopped_engine,
        stops_engine=True,
    ),
    Attack("foreign timelines", "six names", ("404",), foreign_timelines),
    Attack("foreign pages", "POSTs with a foreign Origin", ("401", "403"), foreign_pages),
    Attack(
        "killed engine", "SIGKILL under 17 streams", ("200", "503"), killed_engine, ends_engine=True
    ),
)
