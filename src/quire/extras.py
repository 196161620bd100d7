"""Tells how an optional part of Quire is installed, for the errors that say it is missing.

Quire is not on a package index: its extras come from a checkout or a wheel.
"""


def how_to_install(extra: str) -> str:
    """Return the commands, for people; `extra` is a name of pyproject.toml."""
    return (
        f"in a checkout `make install EXTRAS={extra}`, with a wheel "
        f'`pip install "$(echo dist/quire-*.whl)[{extra}]"`, in a container '
        f"`docker build --build-arg EXTRAS={extra} .`"
    )
