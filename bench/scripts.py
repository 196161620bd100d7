"""Scripts of requests: prompts put together of messages and of the outputs of earlier requests, so
that a cache alone and a real server can be sent the same ones.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from quire.workbench.simulation.traces.mooncake import TRACE_BLOCK_SIZE, read_mooncake
from quire.workbench.simulation.traces.traced_request import TracedRequest

BLOCK_SIZE = 16


class Message(NamedTuple):
    """Tokens that no model has written. Equal contents are equal tokens."""

    content: int
    num_tokens: int


class Said(NamedTuple):
    """The output of the request `number` as a later prompt has it: without its first tokens."""

    number: int
    num_left_out: int = 0


Part: TypeAlias = Message | Said


class ScriptedTurn(NamedTuple):
    """A request: the parts of its prompt, the length of its output, and the conversation whose
    turns follow each other."""

    number: int
    conversation: int
    parts: tuple[Part, ...]
    num_outputs: int


class Script(NamedTuple):
    """Requests in the order of their arrival. A token stands for `scale` tokens."""

    name: str
    turns: Sequence[ScriptedTurn]
    scale: int = 1

    def shortened(self, times: int) -> "Script":
        """Return the script with all lengths divided, to one token at least."""
        turns = [_shortened(turn, times) for turn in self.turns]
        return Script(self.name, turns, self.scale * times)


class Turn(NamedTuple):
    """A request: its prompt, its output, and the conversation whose turns follow each other."""

    prompt: Sequence[int]
    output: Sequence[int]
    conversation: int


class TurnTrace(NamedTuple):
    """Turns in the order of their arrival. A token stands for `scale` tokens."""

    name: str
    turns: Sequence[Turn]
    scale: int = 1

    @property
    def num_distinct_blocks(self) -> int:
        """The number of blocks that hold all of it at once."""
        seen: set[int] = set()
        num = 0
        for turn in self.turns:
            digest = 0
            tokens = (*turn.prompt, *turn.output)
            for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
                digest = hash((digest, tokens[start : start + BLOCK_SIZE]))
                if digest not in seen:
                    seen.add(digest)
                    num += 1
        return num


def resolved(script: Script) -> TurnTrace:
    """Return the script with tokens, all of them different but where contents are equal."""
    contents: dict[int, Sequence[int]] = {}
    outputs: dict[int, Sequence[int]] = {}
    num_tokens = 0

    def fresh(length: int) -> Sequence[int]:
        nonlocal num_tokens
        num_tokens += length
        return tuple(range(num_tokens - length + 1, num_tokens + 1))

    def tokens(part: Part) -> Sequence[int]:
        if isinstance(part, Said):
            return outputs[part.number][part.num_left_out :]
        if part.content not in contents:
            contents[part.content] = fresh(part.num_tokens)
        return contents[part.content]

    turns = []
    for turn in script.turns:
        prompt = [token for part in turn.parts for token in tokens(part)]
        output = outputs[turn.number] = fresh(turn.num_outputs)
        turns.append(Turn(tuple(prompt), output, turn.conversation))
    return TurnTrace(script.name, turns, script.scale)


def mooncake(name: str, path: Path, num_requests: int) -> Script:
    """Return a trace of Mooncake (arXiv 2407.00079), of its first `num_requests` requests. The rest
    of a prompt after its last whole block is one token, and outputs are in no later prompt."""
    with path.open(encoding="utf-8") as lines:
        return Script(name, _mooncake(read_mooncake(lines)[:num_requests]))


def first_conversations(script: Script, num_conversations: int) -> Script:
    """Return the requests of the conversations that begin first: their prompts have two parts in
    common, of which all may share the first."""
    begun: dict[tuple[Part, ...], int] = {}
    turns = []
    for turn in script.turns:
        key = turn.parts[:2]
        if key in begun or len(begun) < num_conversations:
            turns.append(turn._replace(conversation=begun.setdefault(key, len(begun))))
    return script._replace(turns=turns)


def in_order(name: str, timed: Iterable[tuple[float, ScriptedTurn]]) -> Script:
    """Return the script of requests that arrive at these times."""
    ordered = sorted(timed, key=lambda each: (each[0], each[1].number))
    return Script(name, [turn for _, turn in ordered])


def _mooncake(requests: Iterable[TracedRequest]) -> list[ScriptedTurn]:
    turns = []
    for number, request in enumerate(requests):
        whole = [each for each in request.parts if each.num_tokens == TRACE_BLOCK_SIZE]
        blocks = (Message(each.content, each.num_tokens) for each in whole)
        own = Message(-1 - number, 1)
        turns.append(ScriptedTurn(number, number, (*blocks, own), request.num_output_tokens))
    return turns


def _shortened(turn: ScriptedTurn, times: int) -> ScriptedTurn:
    parts = tuple(
        each._replace(num_left_out=each.num_left_out // times)
        if isinstance(each, Said)
        else each._replace(num_tokens=max(1, each.num_tokens // times))
        for each in turn.parts
    )
    return turn._replace(parts=parts, num_outputs=max(1, turn.num_outputs // times))
