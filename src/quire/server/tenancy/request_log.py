"""The line of the log that each finished request has. It never holds a text of the client or of
the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.scheduler.step import Finish


@dataclass(slots=True)
class RequestFigures:
    """The figures of a generation for the log, known at its end: times in seconds are those of the
    slowest choice, cached tokens those of the usage; `finish` has each of the engine's reasons
    once. Of a request that was refused or failed there is the code of the error, and the path of
    the field at fault."""

    model: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish: str = ""
    error_code: str | None = None
    error_field: str | None = None

    def note(
        self,
        model: str,
        num_prompt_tokens: int,
        num_cached_tokens: int,
        finishes: Sequence[Finish],
    ) -> None:
        """Note how the choices that the engine has ended did; none if the client went before."""
        self.model = model
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = num_cached_tokens
        self.num_output_tokens = sum(each.num_output_tokens for each in finishes)
        self.queue_s = max((each.queue_s for each in finishes), default=0.0)
        self.prefill_s = max((each.prefill_s for each in finishes), default=0.0)
        self.decode_s = max((each.decode_s for each in finishes), default=0.0)
        self.finish = ",".join(dict.fromkeys(str(each.reason) for each in finishes)) or "aborted"

    def fail(self, code: str, field: str | None = None) -> None:
        """Note why the request was refused or failed: `field` is a path without a client's text."""
        self.error_code, self.error_field = code, field

    def fields(self) -> dict[str, object]:
        """Return what the line tells; nothing for a request that generated nothing and was not
        refused."""
        errors = {"error_code": self.error_code, "error_field": self.error_field}
        told: dict[str, object] = {name: value for name, value in errors.items() if value}
        if self.model is None:
            return told
        return {
            "model": self.model,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
            "queue_s": round(self.queue_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "finish": self.finish,
            **told,
        }


def as_text(fields: dict[str, object]) -> str:
    """Return fields as ` name=value` each, for a line that people read."""
    return "".join(f" {name}={value}" for name, value in fields.items())
