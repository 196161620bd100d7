"""Reads what a GGUF file says of its model: a value of another type is refused by its key."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.models.config import CheckpointError
from quire.models.loading.gguf.header import GgufHeader, Value
from quire.models.loading.gguf.reading import MalformedFile, Strings

T = TypeVar("T")


class Fields(NamedTuple):
    """The metadata of a file. Where a key is missing each method returns `default`."""

    header: GgufHeader

    @property
    def path(self) -> Path:
        return self.header.path

    def refusal(self, why: str) -> CheckpointError:
        """Return the error that says why the file cannot be served."""
        return CheckpointError(f"{self.path} cannot be served: {why}")

    def text(self, key: str, default: T) -> str | T:
        """Return a string."""
        value = self.header.metadata.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def whole(self, key: str, default: T) -> int | T:
        """Return a number that counts something."""
        value = self.header.metadata.get(key)
        if value is None:
            return default
        if type(value) is not int or value < 0:
            raise self._wrong(key, value, "a whole number of at least 0")
        return value

    def number(self, key: str, default: T) -> float | T:
        """Return a finite number."""
        value = self.header.metadata.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return value

    def truth(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.header.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def numbers(self, key: str, length: int) -> NDArray[np.generic] | None:
        """Return an array of finite numbers of the given length; None if it is missing or empty."""
        value = self.header.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            raise self._wrong(key, value, "an array of numbers")
        if len(value) not in (0, length):
            raise self.refusal(f"{key} has {len(value):,} numbers for {length:,} tokens")
        if not np.isfinite(value).all():
            raise self.refusal(f"{key} holds numbers that are not finite")
        return value if len(value) else None

    def texts(self, key: str, default: Sequence[str] | None = None) -> Sequence[str]:
        """Return an array of strings, whose decoding may be refused still."""
        value = self.header.metadata.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, Strings):
            raise self._wrong(key, value, "an array of strings")
        try:
            return list(value)
        except MalformedFile as error:
            raise self.refusal(f"{key}: {error}") from error

    def tensor(self, name: str) -> NDArray[np.float32] | None:
        """Return a small tensor of float32 numbers, None where there is none of that name."""
        found = next((each for each in self.header.tensors if each.name == name), None)
        if found is None:
            return None
        if found.type.name != "F32":
            raise self.refusal(f"{name} is {found.type.name}, must be F32")
        return np.fromfile(found.path, np.float32, found.num_elements, offset=found.start)

    def _wrong(self, key: str, value: Value | None, must: str) -> CheckpointError:
        if value is None:
            return self.refusal(f"it has no {key}")
        shown = f"of type {type(value).__name__}" if not isinstance(value, int | float) else value
        return self.refusal(f"{key} is {shown}, must be {must}")
