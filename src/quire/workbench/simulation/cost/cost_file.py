"""The file of a cost model: JSON with the coefficients, what was measured, and how well it fits.

A step takes

    base_s + seq_s * sequences + f(tokens) + prefill_s * prefill tokens
        + context_token_s * tokens in the contexts of decoding sequences + pair_s * prefill pairs

where f is piecewise linear in all tokens of the step and starts at 0: weights are read once however
few tokens there are, and matrix products are faster for many.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

FORMAT = 1
BUILT_IN = Path(__file__).parent / "data"
SUFFIX = ".json"


class CostFileError(Exception):
    """The file is no cost model; the text is for people."""


class StepCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The coefficients of a step, in seconds; `token_s` has one slope for the tokens up to each of
    `token_knots`, and one for those beyond the last."""

    base_s: float
    token_knots: tuple[int, ...]
    token_s: tuple[float, ...]
    seq_s: float = 0.0
    prefill_s: float = 0.0
    context_token_s: float = 0.0
    pair_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.token_s) != len(self.token_knots) + 1:
            raise ValueError(
                f"token_s has {len(self.token_s)} slopes, must be {len(self.token_knots) + 1}: one "
                "more than token_knots"
            )
        if list(self.token_knots) != sorted({each for each in self.token_knots if each > 0}):
            raise ValueError("token_knots must be above 0 and ascend")
        others = self.base_s, self.seq_s, self.prefill_s, self.context_token_s, self.pair_s
        if min(*self.token_s, *others) < 0:
            raise ValueError("a coefficient of the step is below 0")


class GapCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds between the end of a step and the beginning of the next: what the engine's loop
    does meanwhile, for each sequence of the step and beside them."""

    base_s: float = 0.0
    seq_s: float = 0.0


class ServerCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seconds that the server adds. The event loop takes one thing after another: `request_s`
    for each request and `delta_s` for what a step adds to one output; the latencies pass beside
    that, on the way in and on the way out."""

    request_s: float = 0.0
    request_latency_s: float = 0.0
    delta_s: float = 0.0
    reply_latency_s: float = 0.0


class EngineShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of the engine that was measured, which a simulation has unless it is told
    others. `token_bytes` are those of a token's keys and values in all layers, 0 where that is not
    known. `num_states` are the states of recurrent layers, the null state among them, of
    `state_bytes` each; 0 without such layers."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    is_overlapped: bool = False
    token_bytes: int = 0
    num_states: int = 0
    state_bytes: int = 0


class FitErrors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The errors of a fit, as shares of what was measured. `ratios` are quantiles, at equal
    distances, of the measured over the predicted seconds of a step."""

    num_steps: int
    median: float
    p90: float
    p99: float
    ratios: tuple[float, ...] = ()


class CostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cost model: which model on which machine, where its numbers come from, and they."""

    format: int
    model: str
    machine: str
    source: str
    step: StepCoefficients
    engine: EngineShape
    gap: GapCost = GapCost()
    server: ServerCost = ServerCost()
    fit: FitErrors | None = None


def built_in_names() -> Iterator[str]:
    """Yield the names of the cost models that come with Quire."""
    yield from sorted(path.stem for path in BUILT_IN.glob(f"*{SUFFIX}"))


def load_cost(name: str) -> CostFile:
    """Return the cost model of a file, or one that comes with Quire by its name. Raises
    CostFileError, and OSError."""
    path = BUILT_IN / f"{name}{SUFFIX}" if name in built_in_names() else Path(name)
    if not path.is_file():
        names = ", ".join(built_in_names())
        raise CostFileError(f"{name}: there is no such file, and the built-in costs are {names}")
    try:
        cost = msgspec.json.decode(path.read_bytes(), type=CostFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CostFileError(f"{name}: no cost model: {error}") from None
    if cost.format != FORMAT:
        raise CostFileError(f"{name}: the file has format {cost.format}, must be {FORMAT}")
    return cost


def save_cost(cost: CostFile, path: Path) -> None:
    """Write a cost model. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(cost)) + b"\n")
