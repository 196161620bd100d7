"""The files of the page, read and compressed once: they do not change while a server runs."""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

PAGE_FOLDER = "/page"
"""The path below which the page's modules and styles are served, without a key."""
INDEX, ICON = "index.html", "icon.svg"
_LEVEL = 6
_MEDIA_TYPES: Mapping[str, str] = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
"""The media type by the end of a file's name. All files are text in UTF-8."""


class PageFile(NamedTuple):
    """A file as it is served. `etag` is made from the content, without quotation marks."""

    media_type: str
    plain: bytes
    compressed: bytes
    etag: str


@cache
def read_page_files() -> Mapping[str, PageFile]:
    """Return the files of the page by their names, read at the first call. A file of another kind
    than those of the page raises KeyError."""
    static = files("quire.server.app.page") / "static"
    return {each.name: _page_file(each.name, each.read_bytes()) for each in static.iterdir()}


def _page_file(name: str, content: bytes) -> PageFile:
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    compressed = gzip.compress(content, _LEVEL, mtime=0)
    return PageFile(media_type, content, compressed, hashlib.sha256(content).hexdigest()[:32])
