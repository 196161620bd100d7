"""Hears the engines of one model, and tells the server what they tell as if they were one."""

from dataclasses import dataclass, field

import msgspec

from quire.engine.messages import EngineOutput
from quire.engines.local.accounts import EngineAccounts
from quire.engines.local.charges import Charges
from quire.engines.local.placements import Placements
from quire.engines.process.end_cause import EndCause
from quire.engines.process.subscriber import EngineSubscriber
from quire.scheduler.request import Event
from quire.scheduler.step import Delta


@dataclass(slots=True)
class EnginesState:
    """All that is known of the engines together. `charges` is None where there are no fair shares;
    `routed` has events of requests that are not told yet; `watched` is the engine whose blocks are
    shown."""

    placements: Placements
    charges: Charges | None
    accounts: EngineAccounts = field(default_factory=EngineAccounts)
    routed: list[tuple[str, Event]] = field(default_factory=list)
    watched: int | None = None


class EngineListener:
    """Hears the engine of one number, and tells the subscriber of all."""

    def __init__(self, index: int, heard: EnginesState, subscriber: EngineSubscriber) -> None:
        self._index = index
        self._name = str(index)
        self._heard = heard
        self._subscriber = subscriber

    def on_output(self, output: EngineOutput) -> None:
        """Tell what the engine tells, with the accounts of all."""
        heard, name = self._heard, self._name
        if heard.charges is not None:
            heard.charges.take(self._index, output.usage)
        heard.placements.note_events(output.events)
        heard.accounts.take(name, output.stats)
        routed, heard.routed = heard.routed, []
        self._subscriber.on_output(
            msgspec.structs.replace(
                output,
                stats=heard.accounts.total,
                deltas=tuple(
                    each if each.finish is None else heard.placements.with_route(each)
                    for each in output.deltas
                ),
                events=(*routed, *output.events),
                disk=heard.accounts.take_disk(name, output.disk),
                transfer=heard.accounts.take_transfer(name, output.transfer),
                live=output.live if heard.watched == self._index else None,
            )
        )

    def on_ended_here(self, delta: Delta) -> None:
        """Tell of a request that has ended while no engine had it."""
        self._subscriber.on_ended_here(self._heard.placements.with_route(delta))

    def on_engine_lost(self, cause: EndCause) -> None:
        """Tell that the engine has ended: what it had cached and was charged for is gone."""
        heard = self._heard
        heard.accounts.lose(self._name)
        heard.placements.forget_prefixes(self._index)
        if heard.charges is not None:
            heard.charges.forget(self._index)
        self._subscriber.on_engine_lost(cause)
        heard.accounts.begin_anew()

    def on_quarantined(self) -> None:
        """Tell that a request was ended because it crashes engines."""
        self._subscriber.on_quarantined()

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        """Tell that another engine goes on."""
        self._subscriber.on_engine_resumed(num_resumed, out_of_service_s)

    def on_flight_kept(self, is_written: bool) -> None:
        """Tell that a flight record was written, or could not be."""
        self._subscriber.on_flight_kept(is_written)
