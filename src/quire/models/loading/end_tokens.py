"""The tokens that end a text, as a checkpoint states them: ids or nothing, and only those that the
model can sample.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from quire.models.config import CheckpointError

logger = logging.getLogger(__name__)

GENERATION = "generation_config.json"


def end_tokens(stated: object, place: Path) -> tuple[int, ...]:
    """Return the ids of an `eos_token_id` field that `place` states. Raises CheckpointError."""
    if stated is None:
        return ()
    ids = stated if isinstance(stated, list | tuple) else [stated]
    if any(type(each) is not int for each in ids):
        raise CheckpointError(
            f"{place}: eos_token_id is {stated!r}, must be a token id or a list of them"
        )
    return tuple(ids)


def check_end_tokens(folder: Path) -> None:
    """Raise CheckpointError, before weights are read, if generation_config.json states no ids.

    transformers skips a file that is not JSON, and has checked what config.json states.
    """
    path = folder / GENERATION
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(stated, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    end_tokens(stated.get("eos_token_id"), path)


def within_vocabulary(ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the ids below `vocab_size`, and log the others: they can never be sampled."""
    known = tuple(each for each in ids if 0 <= each < vocab_size)
    beyond = [each for each in ids if each not in known]
    if beyond:
        logger.warning(
            "eos_token_id states %s, beyond the vocabulary of %d: no text ends there",
            ", ".join(map(str, beyond)),
            vocab_size,
        )
    return known
