"""Reasoning as the `encrypted_content` of an item: clients that drop the text send this back.

It is the text in base64 behind a mark, and no secret: a client that asks for it is told the text as
well. Other servers' contents have no such mark, and their text cannot be known.
"""

from base64 import b64decode, b64encode

MARK = "quire-reasoning-v1."


def sealed(text: str) -> str:
    """Return the content that holds a text."""
    return MARK + b64encode(text.encode()).decode()


def unsealed(content: str) -> str | None:
    """Return the text in a content, None where this server did not make it."""
    if not content.startswith(MARK):
        return None
    try:
        return b64decode(content.removeprefix(MARK), validate=True).decode()
    except ValueError:
        return None
