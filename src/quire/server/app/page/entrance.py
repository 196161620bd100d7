"""The answer of `/` to programs."""

import msgspec

from quire.version import __version__


class Entrance(msgspec.Struct, frozen=True):
    """The paths at which a program goes on."""

    version: str = __version__
    models: str = "/v1/models"
    openapi: str = "/openapi.json"
    docs: str = "/docs"
    object: str = "server"
