"""The values of an output that are to be of schemas which its grammar holds it to in part."""

from collections.abc import Sequence

from quire.server.generation.output_delta import OutputDelta
from quire.server.grammars.compose import SchemaPromise
from quire.server.grammars.validity import ValueCheck


class PromisedValues:
    """Gathers the answer and the calls of one output, delta by delta."""

    def __init__(self, promises: Sequence[SchemaPromise]) -> None:
        self._schemas = {each.tool: each.schema for each in promises}
        self._text: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, delta: OutputDelta) -> None:
        """Take the next delta of the output."""
        if not self._schemas:
            return
        if delta.text and None in self._schemas:
            self._text.append(delta.text)
        for call in delta.calls:
            if call.name is not None:
                self._names[call.number] = call.name
            self._arguments.setdefault(call.number, []).append(call.arguments)

    def checks(self) -> tuple[ValueCheck, ...]:
        """Return the values with their schemas: of calls, or without any, of the answer."""
        called = [
            (self._schemas.get(self._names.get(number, "")), "".join(parts))
            for number, parts in self._arguments.items()
        ]
        if called:
            return tuple(ValueCheck(schema, text) for schema, text in called if schema is not None)
        answer = self._schemas.get(None)
        return () if answer is None else (ValueCheck(answer, "".join(self._text)),)
