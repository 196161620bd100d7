"""Structured output in an engine: what a grammar costs a step, and what forced tokens save.

    python -m bench.structured MODEL [--requests 32] [--tokens 64] [--rounds 3]

Requests go to an engine in this process, all at once. `company` has the gaps between tokens of
plain requests, half of all, among structured ones, against those among plain ones. In each round
all cases take turns; prints medians, and the ratios to the plain or slower case.
"""

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from llguidance import LLMatcher

from bench.in_process import build_quietly
from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.models.optimizations import Optimization
from quire.scheduler.request import NewRequest, Sampling, Stopping

PROMPT_TOKENS = 128
SHORT_PROMPT_TOKENS = 8
"""So short are prompts of outputs with fixed keys: all of them begin in one step, and none has
ended when the last begins."""
MAX_MODEL_LEN = 512
FREE: dict[str, object] = {"type": "string", "minLength": 1000}
"""It does not end before a request has its tokens, which are as free as those of a plain one."""
FIXED_KEYS: dict[str, object] = {
    "type": "object",
    "properties": {
        name: {"type": "boolean"}
        for name in ("is_the_customer_satisfied", "has_an_open_invoice", "wants_to_be_called_back")
    },
    "required": ["is_the_customer_satisfied", "has_an_open_invoice", "wants_to_be_called_back"],
    "additionalProperties": False,
}


class Outcome(NamedTuple):
    """Tokens a second of all requests, and the gaps between tokens of the plain ones, in
    seconds."""

    tokens_per_s: float
    gaps_s: list[float]


def grammar_of(schema: dict[str, object]) -> str:
    options = {"whitespace_flexible": False}
    return str(LLMatcher.grammar_from_json_schema(json.dumps({"x-guidance": options, **schema})))


def build(model: str, num_requests: int, disabled: Sequence[Optimization] = ()) -> Engine:
    config = EngineConfig(
        ModelConfig(model, device="cpu", disable_optimizations=tuple(disabled)),
        MemoryConfig(enable_prefix_caching=False, kv_cache_tokens=num_requests * MAX_MODEL_LEN),
        SchedulingConfig(max_model_len=MAX_MODEL_LEN, max_num_seqs=num_requests),
    )
    return build_quietly(config)[0]


def requests(grammars: Sequence[str], num_tokens: int, prompt_tokens: int) -> list[NewRequest]:
    """Return a request for each grammar, of which the empty ones are plain."""
    return [
        NewRequest(
            str(index),
            tuple((index * 31 + place * 7) % 1000 + 10 for place in range(prompt_tokens)),
            Sampling(seed=index, grammar=grammar),
            Stopping(num_tokens, eos_token_ids=(0,) if grammar else ()),
        )
        for index, grammar in enumerate(grammars)
    ]


def run(engine: Engine, news: list[NewRequest]) -> Outcome:
    """Run requests to their end; the time is that from the first token of all on."""
    plain = {new.id for new in news if not new.sampling.grammar}
    last_s: dict[str, float] = {}
    gaps_s: list[float] = []
    began_s = now = 0.0
    num_tokens = 0
    for new in news:
        refusal = engine.submit(new)
        if refusal is not None:
            raise ValueError(refusal.message)
    while engine.has_work:
        deltas = [delta for delta in engine.step().deltas if delta.token_ids]
        now = time.perf_counter()
        if len(last_s) == len(news):
            began_s = began_s or now
            num_tokens += sum(len(delta.token_ids) for delta in deltas) if now > began_s else 0
            gaps_s += [now - last_s[each.request_id] for each in deltas if each.request_id in plain]
        last_s |= dict.fromkeys((delta.request_id for delta in deltas), now)
    return Outcome(num_tokens / (now - began_s), gaps_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.structured")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    forced = build(args.model, args.requests)
    sampled = build(args.model, args.requests, [Optimization.FORCED_TOKENS])
    free, keys = grammar_of(FREE), grammar_of(FIXED_KEYS)
    half = args.requests // 2
    cases = {
        "plain": (forced, [""] * args.requests),
        "free text in a grammar": (forced, [free] * args.requests),
        "company": (forced, [""] * half + [free] * (args.requests - half)),
        "fixed keys, forced": (forced, [keys] * args.requests),
        "fixed keys, sampled": (sampled, [keys] * args.requests),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    gaps: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(args.rounds + 1):
        for name, (engine, grammars) in cases.items():
            prompt_tokens = SHORT_PROMPT_TOKENS if keys in grammars else PROMPT_TOKENS
            outcome = run(engine, requests(grammars, args.tokens, prompt_tokens))
            if number:  # the first round compiles and warms up
                rates[name].append(outcome.tokens_per_s)
                gaps[name] += outcome.gaps_s
    for name, values in rates.items():
        gap = f", gap {1e3 * median(gaps[name]):.2f} ms" if gaps[name] else ""
        print(f"{name}: {median(values):.0f} tokens/s{gap}")
    rate = {name: median(values) for name, values in rates.items()}
    print(f"structured to plain: {rate['free text in a grammar'] / rate['plain']:.3f}")
    print(f"forced to sampled: {rate['fixed keys, forced'] / rate['fixed keys, sampled']:.2f}")
    print(f"gap in company: {median(gaps['company']) / median(gaps['plain']):.3f}")


if __name__ == "__main__":
    main()
