"""Reads the tokens of a model while its weights are read.

The interpreter's lock is held meanwhile, a second or more at 150,000 tokens: an engine that read
them with its first grammar would hold up every stream.
"""

import logging
import threading
from pathlib import Path

from quire.engine.grammar.exact_tokenizer import (
    GrammarVocabulary,
    TokenizerTable,
    build_vocabulary,
    read_tokenizer,
)
from quire.engine.grammar.tokenizer_facts import TOKENIZER
from quire.models.config import ModelFacts

logger = logging.getLogger(__name__)


class VocabularyReader:
    """Reads the tokenizer of the model in `folder`, if it has one, in a thread that begins at
    once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: TokenizerTable | None = None
        self._thread = threading.Thread(target=self._run, name="read-tokenizer", daemon=True)
        self._thread.start()

    def vocabulary(self, model: ModelFacts) -> GrammarVocabulary | None:
        """Wait for the tokenizer, and return the model's tokens; None where no token ends outputs,
        or there is no tokenizer that can be read."""
        self._thread.join()
        read, self._read = self._read, None
        if read is None or not model.eos_token_ids:
            return None
        try:
            return build_vocabulary(read, model.vocab_size, model.eos_token_ids)
        except Exception:
            logger.exception("the tokens are none for grammars: requests that have one will fail")
            return None

    def _run(self) -> None:
        if not (self._folder / TOKENIZER).is_file():
            return
        try:
            self._read = read_tokenizer(self._folder)
        except Exception:
            logger.exception("the tokenizer cannot be read: requests with a grammar will fail")
