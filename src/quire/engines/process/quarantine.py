"""Remembers the requests that crash engines, so that the same one is not run again for a while."""

import hashlib
import time
from collections import OrderedDict
from dataclasses import replace

from quire.scheduler.request import NewRequest

MAX_KEPT = 1000
KEPT_S = 3600.0


class Quarantine:
    """Keeps digests of the last MAX_KEPT requests that were found, each for KEPT_S seconds. Two
    requests are the same if they have one prompt and are sampled and stopped alike, whatever their
    seeds."""

    def __init__(self) -> None:
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def add(self, request: NewRequest, now: float) -> None:
        """Remember a request."""
        self._until_s[_digest(request)] = now + KEPT_S
        while len(self._until_s) > MAX_KEPT:
            self._until_s.popitem(last=False)

    def __contains__(self, request: NewRequest) -> bool:
        if not self._until_s:
            return False
        return self._until_s.get(_digest(request), 0.0) > time.monotonic()


def _digest(request: NewRequest) -> bytes:
    sampling = replace(request.sampling, seed=0)
    parts = (request.prompt_token_ids, sampling, request.stopping, request.pooling)
    return hashlib.sha256(repr(parts).encode()).digest()
