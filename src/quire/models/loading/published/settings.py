"""Reads the settings of a quantized checkpoint, and refuses unsupported ones."""

from collections.abc import Collection, Mapping

from quire.models.loading.published.published_format import PartOutline, UnsupportedFormat

Settings = Mapping[str, object]


def whole(settings: Settings, name: str, default: int | None = None) -> int:
    """Return a whole number. Raises UnsupportedFormat."""
    value = settings.get(name, default)
    if type(value) is not int:
        raise UnsupportedFormat(f"whose {name} is {value!r}, must be a whole number")
    return value


def refuse_other(settings: Settings, name: str, allowed: Collection[object]) -> None:
    """Raise UnsupportedFormat for a setting that is neither absent, null nor one of those that are
    read."""
    value = settings.get(name)
    if value is not None and value not in allowed:
        read = " or ".join(repr(each) for each in allowed)
        raise UnsupportedFormat(f"whose {name} is {value!r}, of which Quire reads {read}")


def shapes_of(
    parts: Mapping[str, PartOutline], dtypes: Mapping[str, Collection[str]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parts that are stored in one of these dtypes each. Raises
    UnsupportedFormat for a part that is missing, of another dtype or without columns."""
    for name, allowed in dtypes.items():
        found = parts.get(name)
        if found is None:
            raise UnsupportedFormat(f"its {name} is missing")
        if found.dtype not in allowed:
            raise UnsupportedFormat(
                f"its {name} is of {found.dtype}, must be of {' or '.join(allowed)}"
            )
    return {name: parts[name].shape for name in dtypes}


def refuse_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise UnsupportedFormat for a part of another shape than that which the others ask for."""
    if found != wanted:
        raise UnsupportedFormat(f"its {name} is {list(found)}, must be {list(wanted)}")


def refuse_others(parts: Collection[str], known: Collection[str]) -> None:
    """Raise UnsupportedFormat for a part that the others leave no use for."""
    for name in parts:
        if name not in known:
            raise UnsupportedFormat(f"its {name} is one part too many")


def refuse_flat(shapes: Mapping[str, tuple[int, ...]], *names: str) -> None:
    """Raise UnsupportedFormat for parts that are no matrices."""
    for name in names:
        if len(shapes[name]) != 2:
            raise UnsupportedFormat(f"its {name} is {list(shapes[name])}, must be a matrix")


def sizes_of_block(name: str, value: object) -> tuple[int, int]:
    """Return the rows and columns of blocks. Raises UnsupportedFormat."""
    if isinstance(value, list) and len(value) == 2:
        rows, columns = value
        if type(rows) is int and type(columns) is int and min(rows, columns) > 0:
            return rows, columns
    raise UnsupportedFormat(f"whose {name} is {value!r}, must be two whole numbers")
