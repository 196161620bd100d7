"""Each event of a timeline is said in a whole sentence, with its number and the other request."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.scheduler.reasons import Reason
from quire.scheduler.request import Event
from quire.server.cli.options import OPTIONS
from quire.server.observability.timeline_reasons import MEANINGS
from quire.server.observability.timeline_words import SENTENCES, pace_sentence, sentence

IDS = (Reason.STOP_TOKEN, Reason.END_OF_SEQUENCE)
"""Their number is the id of a token, which means nothing to people."""
WITH_OTHERS = (
    *(Reason.ROUTED, Reason.WAITS_FOR_BLOCKS, Reason.WAITS_FOR_STATE, Reason.WAITS_FOR_SEQUENCE),
    *(Reason.WAITS_FOR_BUDGET, Reason.WAITS_FOR_PACE, Reason.WAITS_FOR_PREFIX),
    *(Reason.WAITS_FOR_SKIPPED, Reason.FORKED, Reason.PACED, Reason.PREEMPTED_FOR_BLOCKS),
    *(Reason.PREEMPTED_FOR_URGENT, Reason.SWAPPED_OUT),
)


def said(
    reason: Reason, number: int = 0, other: str = "", target_itl_ms: float | None = None
) -> str:
    return sentence(Event(1.0, reason, number, other), target_itl_ms)


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Reason)


@given(st.sampled_from(Reason), st.integers(0, 10**7), st.sampled_from(["", "cmpl-{x}-0"]))
def test_a_sentence_is_whole_and_tells_the_number_and_the_other(
    reason: Reason, number: int, other: str
) -> None:
    text = said(reason, number, other)
    assert text[0] in string.ascii_uppercase and text[-1] == "." and "  " not in text
    if MEANINGS[reason].number is not None and reason not in IDS and (number or "{n" in text):
        assert f"{number:,}" in text
    if reason in WITH_OTHERS and other:
        assert text.count(other) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Computed in parts: prompts get 64 tokens of a step, so that b keeps its target of "
            "50 ms.",
            said(Reason.PACED, 64, "b", 50),
        ),
        (
            "Computed in parts: prompts get 1 token of a step, so that running outputs keep their "
            "pace.",
            said(Reason.PACED, 1),
        ),
        (
            "Waits, since prompts have had their 1,024 tokens of the step, so that b keeps its "
            "target.",
            said(Reason.WAITS_FOR_PACE, 1024, "b"),
        ),
        (
            "Lets others by: its first token would be 1,200 ms late, or would make others late.",
            said(Reason.LATE, 1200),
        ),
        (
            "Gave its place to a more urgent request, b; 30 tokens were thrown away.",
            said(Reason.PREEMPTED_FOR_URGENT, 30, "b"),
        ),
        ("Queued as the first.", said(Reason.QUEUED)),
        ("Prompts may have all the room of a step.", pace_sentence(None, "")),
    ],
)
def test_it_reads_as(text: str, said: str) -> None:
    assert said == text


def test_the_options_that_are_named_are_there() -> None:
    named = {flag for text in SENTENCES.values() for flag in re.findall(r"--([a-z-]+)", text)}
    assert named and named <= {option.flag for option in OPTIONS}
