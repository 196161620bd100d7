"""The links over which simulated engines send each other blocks of keys and values."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

LATENCY_S = 0.001
"""A question and the beginning of its answer take so long."""


class LinkSpeed(NamedTuple):
    """The speed of an engine's link, and the bytes of keys and values of one token."""

    bytes_s: float
    token_bytes: int

    def load_s(self, num_tokens: int) -> float:
        """Return the seconds in which a free link sends so many tokens."""
        return LATENCY_S + num_tokens * self.token_bytes / self.bytes_s


@dataclass(slots=True)
class TransferTotals:
    """The accounts of what was sent: tokens and bytes, the seconds from the end of each prompt to
    the arrival of its blocks, and how many prompts were computed again since that takes less."""

    num_tokens: int = 0
    num_bytes: int = 0
    num_declined: int = 0
    seconds: "array[float]" = field(default_factory=lambda: array("d"))


class Link:
    """One engine's way out: it sends one prompt's blocks after another."""

    def __init__(self, speed: LinkSpeed) -> None:
        self._speed = speed
        self._free_s = 0.0

    def send(self, num_tokens: int, now: float, sent: TransferTotals) -> float:
        """Return when the blocks of so many tokens have arrived, and add them to the accounts."""
        self._free_s = max(now, self._free_s) + self._speed.load_s(num_tokens)
        sent.num_tokens += num_tokens
        sent.num_bytes += num_tokens * self._speed.token_bytes
        sent.seconds.append(self._free_s - now)
        return self._free_s
