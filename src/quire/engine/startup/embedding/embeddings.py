"""Decides the pooling of a model: as configured, otherwise as in its files, otherwise the last
token of a causal model."""

import logging
from pathlib import Path

from quire.engine.config import EngineConfig, PoolingName
from quire.engine.messages import EmbeddingFacts
from quire.engine.startup.embedding.sentence_transformers import read_sentence_files
from quire.models.config import ModelFacts
from quire.scheduler.request import PoolingKind

logger = logging.getLogger(__name__)


def embedding_facts(
    folder: Path, asked: PoolingName, model: ModelFacts, max_model_len: int
) -> EmbeddingFacts:
    """Return how embeddings of the model are made, or why they are not. Raises CheckpointError for
    files that cannot be read, and ValueError for a pooling that makes no sense. A model without
    layers that keep keys and values is an encoder, whose default is the mean of all tokens."""
    is_causal = bool(model.layers)
    if asked is PoolingName.CLS and is_causal:
        raise ValueError(
            f"--pooling is cls, but {model.model_type} models are causal: the first token sees "
            "nothing of the text"
        )
    files = read_sentence_files(folder)
    kind = _kind(asked) or files.pooling or (PoolingKind.LAST if is_causal else PoolingKind.MEAN)
    why_not = files.why_not if asked is PoolingName.AUTO else ""
    if kind is PoolingKind.CLS and is_causal:
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


def encoder_length(config: EngineConfig, folder: Path, model_max_len: int) -> int:
    """Return the most tokens of a text of an encoder: as configured, else as its files say. Raises
    ValueError for more than the model has positions, CheckpointError for files that cannot be
    read."""
    asked = config.scheduling.max_model_len
    if asked is not None and asked > model_max_len:
        raise ValueError(
            f"--max-model-len is {asked}, but this model is made for at most {model_max_len}"
        )
    return asked or min(read_sentence_files(folder).max_len or model_max_len, model_max_len)


def _kind(asked: PoolingName) -> PoolingKind | None:
    return None if asked is PoolingName.AUTO else PoolingKind(asked)
