"""Parts of an output as text: what a stream sends chunk by chunk, and a whole answer joined."""

from typing import NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from quire.scheduler.request import TokenLogprobs
from quire.server.generation.usage import ChoiceAccount, PromptProgress, Timing
from quire.server.grammars.validity import Validity
from quire.server.parsers.events import Event

FLOAT_BYTES = 4


class LogprobEntry(NamedTuple):
    """One token with its log probabilities; the first token of a prompt has none.

    top: pairs of token id and log probability of the likeliest tokens.
    text_offset: the index of the token's first character in the text of the choice.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    text_offset: int


class Ending(NamedTuple):
    """The reason why an output ended, in OpenAI's words; `stop_reason` is the stop string or stop
    token id, `has_calls` says whether the output called tools of the model's choice, and no call is
    broken. Of its calls `num_whole` are complete and `num_broken` are not. `validity` says whether
    the output is of its schema, where its grammar does not hold it to all of that."""

    finish_reason: str
    stop_reason: int | str | None = None
    has_calls: bool = False
    num_whole: int = 0
    num_broken: int = 0
    validity: Validity | None = None

    @property
    def calls_tools(self) -> bool:
        """Whether the client has calls to run, each of which is complete."""
        return self.num_whole > 0 and self.num_broken == 0

    @property
    def is_cut(self) -> bool:
        """Whether a limit, the client or a string or token that it named ended the output."""
        return self.finish_reason != "stop" or self.stop_reason is not None


def choice_account(ending: Ending | None) -> ChoiceAccount | UnsetType:
    """Return Quire's own part of a choice, where there is one."""
    if ending is None or ending.validity is None:
        return UNSET
    is_known = ending.validity is not Validity.UNCHECKED
    return ChoiceAccount(ending.validity is Validity.VALID if is_known else None)


class CallDelta(NamedTuple):
    """A part of a tool call, or all of it: `id` and `name` come with its first part. A call whose
    arguments are not complete `is_broken`, which is known, and said, when the output ends."""

    number: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    is_broken: bool = False


class TokenRead(NamedTuple):
    """A token has come; `is_reasoning` where the text before or after it is."""

    is_reasoning: bool


OrderedPart: TypeAlias = Event | TokenRead


class OutputDelta(NamedTuple):
    """A part of one output, or all of it: deltas joined in their order are the output. Where the
    output is parsed, `text` is its content. `prompt_logprobs` are those of the whole prompt but its
    first token, in one delta. `progress` says how far the prompt is computed. `timing`
    comes with an ending that the engine made; of one by a stop string it is known later. `parts`
    are the text, the reasoning and the calls of a parsed output in the order in which they came,
    where that is kept. `vector` is what a pooled prompt has in place of a text: float32 as it lies
    in memory."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    ending: Ending | None = None
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    progress: PromptProgress | None = None
    timing: Timing | None = None
    parts: tuple[OrderedPart, ...] = ()
    vector: bytes = b""


class GatheredOutput:
    """Gathers the deltas of one output, to be joined at its end.

    `num_parts` counts deltas, log probability entries and numbers of vectors: what joining and
    encoding will cost.
    """

    def __init__(self) -> None:
        self.num_parts = 0
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[LogprobEntry] = []
        self._ending: Ending | None = None
        self._reasoning: list[str] = []
        self._calls: list[tuple[CallDelta, list[str]]] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._parts: list[OrderedPart] = []
        self._vector = b""

    def add(self, delta: OutputDelta) -> None:
        """Take the next delta of the output."""
        self.num_parts += 1 + len(delta.logprobs) + len(delta.calls) + len(delta.prompt_logprobs)
        self.num_parts += len(delta.vector) // FLOAT_BYTES
        self._prompt_logprobs += delta.prompt_logprobs
        self._vector += delta.vector
        self._reasoning.append(delta.reasoning)
        for call in delta.calls:
            if call.number == len(self._calls):
                self._calls.append((call, []))
            head, arguments = self._calls[call.number]
            arguments.append(call.arguments)
            if call.is_broken:
                self._calls[call.number] = (head._replace(is_broken=True), arguments)
        self._parts += delta.parts
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs
        self._ending = delta.ending

    def joined(self) -> OutputDelta:
        """Return the whole output as one delta."""
        text, token_ids = "".join(self._texts), tuple(self._token_ids)
        calls = tuple(call._replace(arguments="".join(parts)) for call, parts in self._calls)
        reasoning = "".join(self._reasoning)
        return OutputDelta(
            text,
            token_ids,
            tuple(self._logprobs),
            self._ending,
            reasoning,
            calls,
            self._prompt_logprobs,
            parts=tuple(self._parts),
            vector=self._vector,
        )
