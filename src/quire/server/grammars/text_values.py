"""Grammars of strings that are written as plain text, without quotes."""

import re
from collections.abc import Mapping

from quire.server.errors import RequestError
from quire.server.grammars.compose import ANY_TEXT, literal
from quire.server.grammars.tool_schemas import ANNOTATIONS, not_sayable

_DATE = (
    r"[0-9]{4}-((0[13578]|1[02])-3[01]|(0[469]|11)-30|(0[13-9]|1[0-2])-29"
    r"|(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][01][0-9]:[0-5][0-9])"
_FORMATS = {
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[a-z0-9]+(-[a-z0-9]+)*(\.[a-z]{2,16}){1,3}",
    "time": _TIME,
    "uri": r"https?://[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]{1,5})?(/[\w.~%+-]*)*(\?[\w.~%+=&-]*)?",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
"""Regular expressions for what models write of RFC 3339, 5321, 3986 and 4122."""
TEXT_KEYWORDS = frozenset(("const", "enum", "format", "maxLength", "minLength", "pattern", "type"))


def text_terminal(schema: Mapping[str, object], path: str) -> str:
    """Return a Lark terminal for the strings of a schema of type string. Raises RequestError for
    what a terminal cannot say."""
    for keyword in schema:
        if keyword not in TEXT_KEYWORDS | ANNOTATIONS:
            raise not_sayable(keyword, path)
    parts: list[str] = []
    for keyword, values in (("const", [schema.get("const")]), ("enum", schema.get("enum"))):
        if keyword in schema:
            parts.append(_one_of(values, f"{path}.{keyword}"))
    if "minLength" in schema or "maxLength" in schema:
        parts.append(_of_length(schema, path))
    if "pattern" in schema:
        parts.append(_matching(schema["pattern"], f"{path}.pattern"))
    found = _FORMATS.get(str(schema.get("format")))
    if found is not None:  # all others are annotations
        parts.append(_matching(f"^{found}$", path))
    return " & ".join(f"({part})" for part in parts) or ANY_TEXT


def _one_of(values: object, path: str) -> str:
    if not isinstance(values, list):
        raise _invalid(path, "must be a list")
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        raise _invalid(path, "has no string, so that nothing is valid")
    words = " | ".join(literal(text) for text in texts if text) or "/(){0}/"
    return f"({words})?" if "" in texts else words


def _of_length(schema: Mapping[str, object], path: str) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    for keyword, value in (("minLength", least), ("maxLength", most)):
        if value is not None and (type(value) is not int or value < 0):
            raise _invalid(f"{path}.{keyword}", "must be an integer, at least 0")
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _matching(pattern: object, path: str) -> str:
    """Return a terminal for texts that a regular expression is found in."""
    if not isinstance(pattern, str):
        raise _invalid(path, "must be a string")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _invalid(path, f"must be a regular expression: {error}") from None
    starts, ends = pattern.startswith("^"), re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    inner = pattern[starts : len(pattern) - ends]
    escaped = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], inner)
    line = escaped.replace("\n", "\\n").replace("\r", "\\r")
    core = f"/{line}/" if line else "/(){0}/"
    return f"{'' if starts else ANY_TEXT} {core} {'' if ends else ANY_TEXT}"


def _invalid(path: str, why: str) -> RequestError:
    return RequestError(f"Invalid '{path}': it {why}.", param=path)
