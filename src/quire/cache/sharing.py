"""Says with whom a request may share blocks: what its hash chain holds beside the tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptItem:
    """An image or the like in the token positions `start .. end`, told apart by the digest of its
    content: there the token ids are the same whatever it shows.
    """

    digest: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """The terms on which a request shares cached blocks: only under equal salts, adapters and
    items. The first `num_public_tokens` are shared by all salts, in whole blocks.
    """

    salt: bytes = b""
    num_public_tokens: int = 0
    adapter: str = ""
    items: tuple[PromptItem, ...] = ()


OPEN = SharingTerms()
"""The terms of a request that shares its blocks with all others of these terms."""
