"""A figure that was foretold, beside what was measured."""

import msgspec


class Pair(msgspec.Struct, frozen=True):
    """A figure that was foretold, and what was measured."""

    told: float
    measured: float

    @property
    def error(self) -> float:
        """The share by which it was off; above 0 where too much was told."""
        return self.told / self.measured - 1 if self.measured else 0.0

    def cells(self) -> tuple[str, str, str]:
        """Return the figure told, the measured one and the error, for a table."""
        return (f"{self.told:,.1f}", f"{self.measured:,.1f}", f"{100 * self.error:+.0f} %")
