"""The error of a trace that cannot be read."""


class TraceError(Exception):
    """The trace is none, or a line of it is malformed; the text names the line and the field."""


def whole_number(value: object, name: str, *, at_least: int) -> int:
    """Return a field that is a whole number, as text or as JSON has it. Raises TraceError."""
    number = value
    if isinstance(value, str):
        number = int(value) if value.strip().isdecimal() else None
    if not isinstance(number, int) or isinstance(number, bool) or number < at_least:
        raise TraceError(f"{name} is {value!r}, must be a whole number of {at_least} or more")
    return number
