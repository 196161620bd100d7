"""What was pinned is pinned again: after a reset of the cache, and in another engine."""

from dataclasses import replace

import pytest

from quire.scheduler.reasons import Reason
from quire.server.models import model_prefixes
from tests.server.apis.prefixes.asking import LONG, MESSAGES, listed, pin, shown
from tests.server.served import MODEL, Served, eventually


def test_after_a_reset_it_is_computed_again(served: Served) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    (first,) = served.engine.pinned
    served.engine.may_step.clear()
    served.client.post("/reset_prefix_cache").raise_for_status()
    assert shown(served, told["id"])["state"] == "computing"
    served.engine.may_step.set()
    assert eventually(lambda: shown(served, told["id"]) == told)
    (again,) = served.engine.pinned
    assert again != first
    one, other = served.engine.submitted
    assert replace(one, id="") == replace(other, id="")


def test_a_reset_while_it_is_computed_has_it_computed_again(served: Served) -> None:
    served.engine.pins = Reason.PIN_LOST
    told = pin(served, prompt=LONG).raise_for_status().json()
    assert told["state"] == "computing"
    served.engine.pins = Reason.PINNED
    assert eventually(lambda: shown(served, told["id"])["state"] == "pinned")


def test_what_the_queue_has_no_place_for_is_pinned_again_later(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_prefixes, "RETRY_S", 0.01)
    told = pin(served, prompt=LONG).raise_for_status().json()
    served.engine.refuses = Reason.QUEUE_FULL
    served.client.post("/reset_prefix_cache").raise_for_status()
    assert shown(served, told["id"])["state"] == "computing"
    served.engine.refuses = None
    assert eventually(lambda: shown(served, told["id"])["state"] == "pinned")


def test_what_cannot_be_pinned_again_is_lost_and_says_why(served: Served) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    served.engine.refuses = Reason.PINS_FULL
    served.client.post("/reset_prefix_cache").raise_for_status()
    assert eventually(lambda: shown(served, told["id"])["state"] == "lost")
    lost = shown(served, told["id"])
    assert (lost["why"], lost["num_blocks"]) == ("refused by the script", 0)
    served.engine.refuses = None
    served.client.delete(f"/v1/prefixes/{told['id']}").raise_for_status()


def test_what_fails_when_it_is_computed_again_is_not_tried_for_ever(served: Served) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    served.engine.pins = Reason.NOT_FINITE
    for _ in range(2):
        served.client.post("/reset_prefix_cache").raise_for_status()
        assert eventually(lambda: shown(served, told["id"])["state"] == "lost")
    assert "its computation has ended" in str(shown(served, told["id"])["why"])
    assert len(served.engine.submitted) == 2


@pytest.mark.parametrize(("refuses", "is_tried"), [("PINS_FULL", True), ("QUARANTINED", False)])
def test_one_that_crashes_engines_is_not_computed_again(
    served: Served, refuses: str, is_tried: bool
) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    served.engine.refuses = Reason[refuses]
    served.client.post("/reset_prefix_cache").raise_for_status()
    assert eventually(lambda: shown(served, told["id"])["state"] == "lost")
    served.engine.refuses = None
    served.client.post("/reset_prefix_cache").raise_for_status()
    state = "pinned" if is_tried else "lost"
    assert eventually(lambda: shown(served, told["id"])["state"] == state)
    assert len(served.engine.submitted) == 1 + is_tried


def test_a_prefix_that_is_deleted_is_not_pinned_again(served: Served) -> None:
    told = pin(served, prompt=LONG).raise_for_status().json()
    served.engine.may_step.clear()
    served.client.post("/reset_prefix_cache").raise_for_status()
    served.client.delete(f"/v1/prefixes/{told['id']}").raise_for_status()
    served.engine.may_step.set()
    pin(served, prompt=LONG * 2).raise_for_status()
    assert len(served.engine.pinned) == 1


def test_what_was_pinned_in_an_engine_that_has_ended_is_lost(fresh: Served) -> None:
    told = pin(fresh, prompt=LONG).raise_for_status().json()
    fresh.do(lambda: fresh.engine.die("the engine process has ended"))
    lost = shown(fresh, told["id"])
    assert lost["state"] == "lost" and "next" in str(lost["why"])
    assert fresh.metric('quire:pinned_prefixes{engine="0",model_name="test-model",state="lost"')


def test_another_load_of_the_model_pins_again(fresh: Served) -> None:
    first = pin(fresh, prompt=LONG).raise_for_status().json()
    second = pin(fresh, messages=MESSAGES).raise_for_status().json()
    fresh.client.post(f"/v1/models/{MODEL}/unload").raise_for_status()
    assert [each["state"] for each in listed(fresh)] == ["lost", "lost"]
    fresh.client.post(f"/v1/models/{MODEL}/load").raise_for_status()
    assert eventually(lambda: listed(fresh) == [first, second])
    newest = fresh.engines[1]
    assert len(newest.pinned) == 2
    for old, new in zip(fresh.engine.submitted, newest.submitted, strict=True):
        assert replace(old, id="") == replace(new, id="")
