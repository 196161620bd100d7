"""Traces of requests that share beginnings, for `bench.snapshots` and `bench.served_snapshots`.

`tenants` and Mooncake's traces are those that the policy of snapshots was made with. `agents`,
`documents` and `examples` are held out: nothing was chosen by them.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, count

from bench.scripts import Message, Part, Said, Script, ScriptedTurn, in_order

NUM_TENANTS, NUM_CONVERSATIONS, NUM_TURNS = 20, 3, 10
SYSTEM = 1500, 4000
USER = 200, 3000
OUTPUT = 100, 800
OPENING = 6
"""The tokens that open an answer's reasoning: they end a prompt, and no later prompt has them."""
START_S, PAUSE_S = 600.0, 30.0


class Author:
    """Draws lengths and times, and numbers messages and requests."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._contents = count()
        self._numbers = count()
        self.timed: list[tuple[float, ScriptedTurn]] = []

    def message(self, length: int | tuple[int, int]) -> Message:
        """Return a new message of a length, or of one between two."""
        num_tokens = length if isinstance(length, int) else self.draw.randint(*length)
        return Message(next(self._contents), num_tokens)

    def ask(self, at_s: float, conversation: int, parts: Sequence[Part], num_outputs: int) -> int:
        """Send a request; return its number."""
        number = next(self._numbers)
        turn = ScriptedTurn(number, conversation, tuple(parts), num_outputs)
        self.timed.append((at_s, turn))
        return number

    def near(self, median: float, sigma: float, most: int) -> int:
        """Return a length whose logarithm is normal."""
        return max(1, min(round(self.draw.lognormvariate(0, sigma) * median), most))

    def one_of_many(self, number: int) -> int:
        """Return an index below `number`, the first the likeliest (Zipf)."""
        weights = list(accumulate(1 / rank for rank in range(1, number + 1)))
        return self.draw.choices(range(number), cum_weights=weights)[0]


def tenants(name: str, *, keeps_reasoning: bool, seed: int = 0) -> Script:
    """Return the made trace of chats: tenants with a system prompt each, and conversations whose
    prompts are all that was said before. Without its reasoning an output is fed back by its second
    half alone, and its prompt without the tokens that open the reasoning, as by chat templates."""
    author = Author(seed)
    draw = author.draw
    for tenant in range(NUM_TENANTS):
        system = author.message(SYSTEM)
        for number in range(NUM_CONVERSATIONS):
            history: list[Part] = [system]
            now_s = draw.uniform(0, START_S)
            for _ in range(NUM_TURNS):
                history.append(author.message(USER))
                opening, num_outputs = author.message(OPENING), draw.randint(*OUTPUT)
                conversation = tenant * NUM_CONVERSATIONS + number
                asked = author.ask(now_s, conversation, (*history, opening), num_outputs)
                if keeps_reasoning:
                    history += [opening, Said(asked)]
                else:
                    history.append(Said(asked, num_outputs // 2))
                now_s += draw.expovariate(1 / PAUSE_S)
    return in_order(name, author.timed)


AGENT_PROMPT = 6000, 12000
NUM_AGENTS, NUM_TASKS = 3, 24
STEPS = 12, 36
RETRY_SHARE = 0.15
MOST_CONTEXT = 40_000
STEP_S, TASK_S = 15.0, 40.0


def agents(name: str, *, seed: int = 1) -> Script:
    """Return a made trace of agents: a few have long prompts with their tools, and their histories
    grow by calls and what tools answer. Some steps are tried twice: another prompt goes on from
    the same history. A history that is too long is summed up, and the agent goes on from that."""
    author = Author(seed)
    draw = author.draw
    prompts = [author.message(AGENT_PROMPT) for _ in range(NUM_AGENTS)]
    begin_s = 0.0
    for task in range(NUM_TASKS):
        begin_s += draw.expovariate(1 / TASK_S)
        now_s, head = begin_s, prompts[draw.randrange(NUM_AGENTS)]
        history: list[Part] = [head, author.message((100, 1500))]
        num_tokens = _length(history)
        for _ in range(draw.randint(*STEPS)):
            now_s += draw.expovariate(1 / STEP_S)
            if num_tokens > MOST_CONTEXT:
                summed_up = author.ask(now_s, task, (*history, author.message(200)), 800)
                history = [head, Said(summed_up)]
                num_tokens = head.num_tokens + 800
                continue
            if draw.random() < RETRY_SHARE:
                author.ask(now_s, task, (*history, author.message((20, 400))), 60)
                now_s += STEP_S
            num_outputs = author.near(120, 0.8, 2000)
            asked = author.ask(now_s, task, history, num_outputs)
            answer = author.message(author.near(400, 1.3, 12_000))
            history += [Said(asked), answer]
            num_tokens += num_outputs + answer.num_tokens
    return in_order(name, author.timed)


NUM_DOCUMENTS, NUM_QUESTIONS = 300, 500
NUM_SHOWN = 4
FOLLOW_SHARE = 0.5


def documents(name: str, *, seed: int = 2) -> Script:
    """Return a made trace of questions about documents, which are shown in the order of a search:
    some of them are in many prompts, at any place. Some questions are followed by others."""
    author = Author(seed)
    draw = author.draw
    system, now_s = author.message(600), 0.0
    shelf = [author.message((300, 2000)) for _ in range(NUM_DOCUMENTS)]
    for question in range(NUM_QUESTIONS):
        now_s += draw.expovariate(1 / 2.0)
        shown = dict.fromkeys(author.one_of_many(NUM_DOCUMENTS) for _ in range(NUM_SHOWN))
        history: list[Part] = [system, *(shelf[each] for each in shown)]
        turn_s = now_s
        while True:
            history.append(author.message((20, 200)))
            asked = author.ask(turn_s, question, history, draw.randint(50, 400))
            if draw.random() > FOLLOW_SHARE:
                break
            history.append(Said(asked))
            turn_s += draw.expovariate(1 / PAUSE_S)
    return in_order(name, author.timed)


NUM_HEADS, NUM_INPUTS = 12, 1500


def examples(name: str, *, seed: int = 3) -> Script:
    """Return a made trace of single requests: a few prompts with examples, each with many inputs
    after it, of which some come again."""
    author = Author(seed)
    draw = author.draw
    heads = [author.message((1500, 8000)) for _ in range(NUM_HEADS)]
    inputs: list[tuple[Part, ...]] = []
    for number in range(NUM_INPUTS):
        if not inputs or draw.random() < 0.9:
            head = heads[author.one_of_many(NUM_HEADS)]
            inputs.append((head, author.message((50, 900))))
            parts = inputs[-1]
        else:
            parts = draw.choice(inputs[-100:])
        author.ask(float(number), number, parts, draw.randint(5, 80))
    return in_order(name, author.timed)


def _length(parts: Sequence[Part]) -> int:
    return sum(part.num_tokens for part in parts if isinstance(part, Message))


def held_out() -> Iterator[Script]:
    """Yield the traces that nothing was chosen by."""
    yield agents("agents")
    yield documents("documents")
    yield examples("examples")
