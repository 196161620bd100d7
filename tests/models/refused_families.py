"""The families that are refused: the data of the tests and of docs/models.md. No torch here."""

from typing import NamedTuple

from tests.models.families import DENSE, FOUR, LATENT, Family, Fields

SMALL: Fields = {**DENSE, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
ROBERTA: Fields = {"pad_token_id": 1}


class Refused(NamedTuple):
    family: Family
    why: str
    """A part of what the refusal says."""


REFUSED = {
    "bart": Refused(Family("bart"), "place in the row for its position"),
    "bert, both ways": Refused(Family("bert", fields={"is_decoder": False}), "not causal"),
    "bloom": Refused(Family("bloom"), "place in the row for its position"),
    "deepseek_v32": Refused(Family("deepseek_v32", fields=LATENT), "indexed_attention layers"),
    "diffllama": Refused(Family("diffllama"), "layer 0 attends twice"),
    "doge": Refused(Family("doge"), "an attention mask of their own"),
    "dynamic rope": Refused(
        Family(
            "llama",
            fields={
                **SMALL,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            },
        ),
        "depend on the others",
    ),
    "falcon": Refused(Family("falcon"), "cannot be redirected"),
    "gptj": Refused(Family("gptj", fields={"rotary_dim": 4}), "cannot be redirected"),
    "llama4_text, chunks of no length": Refused(
        Family("llama4_text", fields={**FOUR, "attention_chunk_size": None}),
        "state no attention_chunk_size",
    ),
    "minimax": Refused(Family("minimax"), "linear_attention layers keep no"),
    "moshi": Refused(
        Family("moshi", fields={"sliding_window": 9, "num_codebooks": 2}),
        "a window that transformers",
    ),
    "mpt": Refused(
        Family("mpt", fields={"d_model": 32, "n_layers": 2, "n_heads": 4}),
        "place in the row for its position",
    ),
    "openai-gpt": Refused(Family("openai-gpt"), "do not call the attention function"),
    "olmoe, window": Refused(
        Family("olmoe", fields={"sliding_window": 9}), "a window that transformers"
    ),
    "roberta": Refused(Family("roberta", fields=ROBERTA), "positions do not count from 0"),
    "zaya": Refused(Family("zaya", fields={"num_experts_per_tok": 1}), "hybrid layers keep no"),
}
"""One for each reason at least."""
