"""Parses the bytes of a body into a request model, or raises a RequestError that names the
field."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from quire.server.apis.protocol.capabilities import Capability, Support, capabilities_of
from quire.server.errors import RequestError
from quire.server.http.json_object import parse_object
from quire.server.suggestion import closest

RequestModel = TypeVar("RequestModel", bound=BaseModel)
MAX_SHOWN_CHARS = 200


class ParsedBody(NamedTuple):
    """The fields of a body; `no_effect` are those that were accepted and do nothing."""

    fields: Mapping[str, object]
    no_effect: tuple[str, ...]


def parse_request(
    body: bytes,
    model: type[RequestModel],
    endpoint: str,
    *,
    prepare: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None,
) -> tuple[RequestModel, tuple[str, ...]]:
    """Return the request, and the fields that were accepted without effect. Raises RequestError.

    prepare: changes the fields before they are checked.
    """
    capabilities = capabilities_of(endpoint, model)
    fields, no_effect = _sift(parse_object(body), capabilities)
    prepared = fields if prepare is None else prepare(fields)
    return validate(prepared, model, capabilities), no_effect


def _sift(fields: Mapping[str, object], capabilities: Mapping[str, Capability]) -> ParsedBody:
    """Take out the fields that Quire does not act on."""
    kept: dict[str, object] = {}
    no_effect: list[str] = []
    for name, value in fields.items():
        capability = capabilities.get(name)
        if capability is None:
            kept[name] = value
        elif not capability.passes(value):
            raise unsupported(name)
        elif capability.support is Support.NO_EFFECT and value is not None:
            no_effect.append(name)
    return ParsedBody(kept, tuple(no_effect))


def validate(
    fields: Mapping[str, object],
    model: type[RequestModel],
    capabilities: Mapping[str, Capability] | None = None,
    *,
    at: str = "",
) -> RequestModel:
    """Return the fields as `model`, which stand at the path `at` of the body. Raises RequestError
    for the first fault."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        # A missing field comes last: an unknown field may have been meant for it.
        details = min(
            error.errors(include_url=False, include_input=False),
            key=lambda each: each["type"] == "missing",
        )
        raise _request_error(details, model, capabilities or {}, at) from None


def _request_error(
    details: ErrorDetails,
    model: type[BaseModel],
    capabilities: Mapping[str, Capability],
    at: str,
) -> RequestError:
    context = details.get("ctx", {})
    if details["type"] == "unknown_field":
        return _unknown_field(details["loc"], str(context["name"]), model, capabilities, at)
    where = _path(details["loc"], at) + str(context.get("where", ""))[:MAX_SHOWN_CHARS]
    if details["type"] == "unsupported":
        return unsupported(where)
    if details["type"] == "missing":
        return missing(where)
    return invalid(where, details["msg"])


def error_at(error: PydanticCustomError, at: str) -> RequestError:
    """Return the error of a validator as that of the field at a path."""
    where = at + str((error.context or {}).get("where", ""))
    return unsupported(where) if error.type == "unsupported" else invalid(where, error.message())


def unsupported(where: str, how: str = "yet") -> RequestError:
    """Return the error for a field that Quire does not act on, or not `how` it is asked."""
    return RequestError(
        f"Quire does not support '{where}' {how}.", param=where, code="unsupported_parameter"
    )


def unknown(where: str) -> RequestError:
    """Return the error for a field that Quire does not know."""
    return RequestError(f"Unknown field '{where}'.", param=where, code="unknown_parameter")


def missing(where: str) -> RequestError:
    """Return the error for a field that is not there."""
    return RequestError(
        f"Missing required field '{where}'.", param=where, code="missing_required_parameter"
    )


def invalid(where: str, why: str) -> RequestError:
    """Return the error for a value that is wrong."""
    return RequestError(f"Invalid '{where}': {why}.", param=where)


def _unknown_field(
    path: Sequence[int | str],
    name: str,
    model: type[BaseModel],
    capabilities: Mapping[str, Capability],
    at: str,
) -> RequestError:
    known = _fields_at(path, model) if path else [*model.model_fields, *capabilities]
    meant = closest(name, known)
    hint = f" Did you mean '{_path([*path, meant], at)}'?" if meant else ""
    where = _path([*path, name], at)
    return RequestError(f"Unknown field '{where}'.{hint}", param=where, code="unknown_parameter")


def _fields_at(path: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    """Return the fields of the model that a path leads to, through lists and what may be null."""
    models = [model]
    for name in path:
        if isinstance(name, str):
            types = [each.model_fields[name].annotation for each in models]
            models = [inner for each in types for inner in models_in(each)]
    return [field for each in models for field in each.model_fields]


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models that values of an annotated field may be, or hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def _path(loc: Sequence[int | str], at: str = "") -> str:
    path = at
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path[:MAX_SHOWN_CHARS]


def string_of(holder: Mapping[str, object], name: str, where: str) -> str:
    """Return a field that must be a string. Raises RequestError."""
    value, path = holder.get(name), f"{where}.{name}"
    if value is None:
        raise missing(path)
    if not isinstance(value, str):
        raise invalid(path, "must be a string")
    return value
