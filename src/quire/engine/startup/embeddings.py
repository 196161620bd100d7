"""Decides how a model's embeddings are made: as asked for, else as its files say, else from the
last token of a causal model.
"""

import logging
from pathlib import Path

from quire.engine.config import PoolingName
from quire.engine.messages import EmbeddingFacts
from quire.engine.startup.sentence_transformers import read_sentence_files
from quire.models.config import ModelFacts
from quire.scheduler.request import PoolingKind

logger = logging.getLogger(__name__)


def embedding_facts(
    folder: Path, asked: PoolingName, model: ModelFacts, max_model_len: int
) -> EmbeddingFacts:
    """Return how embeddings of the model are made, or why they are not. Raises CheckpointError for
    files that cannot be read, and ValueError for a pooling that makes no sense."""
    if asked is PoolingName.CLS:
        raise ValueError(
            f"--pooling is cls, but {model.model_type} models are causal: the first token sees "
            "nothing of the text"
        )
    files = read_sentence_files(folder)
    kind = _kind(asked) or files.pooling or PoolingKind.LAST
    why_not = files.why_not if asked is PoolingName.AUTO else ""
    if kind is PoolingKind.CLS:
        why_not = "its pooling is cls, and the first token of a causal model sees nothing"
    if not model.hidden_size:
        why_not = f"{model.model_type} models do not show the states that their head reads"
    if files.default_prompt is not None:
        logger.info("embeddings: the checkpoint's prompt %r is not added", files.default_prompt)
    return EmbeddingFacts(
        pooling=kind,
        is_normalized=files.is_normalized is not False,
        size=model.hidden_size,
        max_len=min(max_model_len, files.max_len or max_model_len),
        why_not=why_not,
    )


def _kind(asked: PoolingName) -> PoolingKind | None:
    return None if asked is PoolingName.AUTO else PoolingKind(asked)
