"""Shows text of strangers on a terminal: what models, servers and their operators have written.

A terminal obeys escape sequences, which could write files, fill the clipboard or forge what is
shown; and marks of direction make text read otherwise than it is. None of them is ever written:
their code points are.
"""

import re

HIDDEN = re.compile(
    r"[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160"
    r"\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""The characters that the page at `/` marks too, and halves of surrogate pairs: controls but tab
and line feed, the marks that turn the direction of text or hide it, and tags."""


def visible(text: str) -> str:
    """Return the text with each hidden character as its code point, as in `<U+001B>`."""
    return HIDDEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)


def on_one_line(text: str, max_chars: int) -> str:
    """Return a text of a stranger, such as a name or a message, on one line of at most so many
    characters."""
    words = visible(" ".join(text.split()))
    return words if len(words) <= max_chars else f"{words[: max_chars - 1]}…"
