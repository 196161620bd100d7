"""The events of a server's live view (`GET /v1/live`), as they are read here: fields that are not
drawn are left out."""

import msgspec

STATES = ("null", "free", "cached", "pinned", "held", "host_free", "host_cached", "swapped")
"""The states of blocks that no shown request holds, by their codes."""
FIRST_SET = 16
"""Codes from here on are sets of requests."""


class BlockCounts(msgspec.Struct, frozen=True):
    """The numbers of blocks in each state."""

    free: int = 0
    cached: int = 0
    active: int = 0
    pinned: int = 0
    swapped: int = 0
    host_cached: int = 0


class TokensInTime(msgspec.Struct, frozen=True):
    """The tokens of requests with latency targets since the start, in time and late: first ones
    (`ttft`), and later ones (`itl`)."""

    ttft_met: int = 0
    ttft_missed: int = 0
    itl_met: int = 0
    itl_missed: int = 0

    @property
    def of_first_tokens(self) -> tuple[int, int]:
        """First tokens in time, and late."""
        return self.ttft_met, self.ttft_missed

    @property
    def of_later_tokens(self) -> tuple[int, int]:
        """Later tokens in time, and late."""
        return self.itl_met, self.itl_missed


class ShownPace(msgspec.Struct, frozen=True):
    """The sentence that says which part of a step prompts get and why, the milliseconds that the
    last step was expected to take, and the share by which such times are wrong."""

    text: str
    predicted_ms: float | None = None
    error: float = 0.0


class LiveFigures(msgspec.Struct, frozen=True):
    """The figures of the whole model since the event before; `step_ms`, `hit_rate`, `targets` and
    `pace` are None where nothing tells them."""

    running: int = 0
    waiting: int = 0
    unlisted: int = 0
    preemptions: int = 0
    steps: int = 0
    step_ms: float | None = None
    tokens_per_s: float = 0.0
    hit_rate: float | None = None
    blocks: BlockCounts = BlockCounts()
    targets: TokensInTime | None = None
    pace: ShownPace | None = None


class ShownRequest(msgspec.Struct, frozen=True):
    """A request, of which `n` is the number in this stream, `prompt` its tokens. `arrived` is in
    Unix seconds, targets are in milliseconds, None where it has none."""

    n: int
    id: str
    prompt: int
    max_tokens: int
    key: str = ""
    arrived: float = 0.0
    target_ttft_ms: float | None = None
    target_itl_ms: float | None = None


class TimelineEvent(msgspec.Struct, frozen=True):
    """The last event of a request's timeline, and what it means in a sentence."""

    event: str
    text: str = ""


class ShownTimes(msgspec.Struct, frozen=True, array_like=True):
    """The milliseconds until the first token of a request with targets and between its last two,
    None before these, and how many tokens after the first were late."""

    ttft_ms: float | None
    itl_ms: float | None
    late: int


class ShownProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a request: tokens whose keys and values are computed, and tokens of its
    output. `why` is None where it is as it was, `times` where the request has no targets."""

    n: int
    phase: str
    computed: int
    outputs: int
    preemptions: int
    why: TimelineEvent | None = None
    times: ShownTimes | None = None


class EngineState(msgspec.Struct, frozen=True, tag_field="type", tag="engine"):
    """The state of the model: what was shown holds no longer unless it is `loaded`."""

    model: str
    state: str


class Picture(msgspec.Struct, frozen=True, tag_field="type", tag="picture"):
    """All there is. `runs` are triples of first block, count and code, `ages` pairs of a count of
    blocks and their seconds in that state, -1 where it is longer than was watched."""

    t: float
    model: str
    num_blocks: int
    num_host_blocks: int
    block_size: int
    runs: list[int]
    ages: list[int]
    sets: list[tuple[int, list[int]]]
    requests: list[ShownRequest]
    progress: list[ShownProgress]
    figures: LiveFigures


class Changes(msgspec.Struct, frozen=True, tag_field="type", tag="changes"):
    """The changes since the event before, in the forms of a picture."""

    t: float
    runs: list[int]
    sets: list[tuple[int, list[int]]]
    entered: list[ShownRequest]
    left: list[int]
    progress: list[ShownProgress]
    figures: LiveFigures


LiveEvent = EngineState | Picture | Changes
_DECODER: msgspec.json.Decoder[LiveEvent] = msgspec.json.Decoder(LiveEvent)


class BadEvent(Exception):
    """A server sent something that is no event of a live view."""


def read_event(data: bytes) -> LiveEvent:
    """Return an event. Raises BadEvent."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent(f"what the server sends is no live view: {error}") from None
