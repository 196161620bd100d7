"""Orders to an engine, as opposed to requests. Each is a message that knows its target engines and
its effect: a new order is a class here and a method of the engine."""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from quire.cache.sharing import SharingTerms
from quire.scheduler.prefix_probe import PrefixProbe


class OrderedEngine(Protocol):
    """The methods of an engine that orders call, between two steps."""

    def reset_prefix_cache(self) -> None: ...

    def unpin(self, request_id: str) -> None: ...

    def note_turn(self, request_id: str, *, calls_tools: bool) -> None: ...

    def watch(self, interval_s: float | None) -> None: ...

    def charge(self, served: Mapping[str, float]) -> None: ...

    def probe(self, token_ids: tuple[int, ...], sharing: SharingTerms) -> PrefixProbe: ...


class OrderBase(msgspec.Struct, frozen=True, array_like=True):
    """An order, as it is handed on: to the engine that runs, if one does, and to each of several.

    wants_engine: it is refused while no engine is ready.
    is_kept: while an engine that has ended is being followed, the next one gets it.
    is_for_one: one of several engines gets it, and another where that one is given up.
    """

    wants_engine: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False
    is_for_one: ClassVar[bool] = False

    def apply(self, engine: OrderedEngine) -> None:
        """Have the engine do it."""
        raise NotImplementedError


class ResetPrefixCache(OrderBase, frozen=True, tag="reset_prefix_cache", array_like=True):
    """Make all cached blocks unfindable for later requests. `num_resets` in later outputs confirms
    it."""

    wants_engine: ClassVar[bool] = True
    is_kept: ClassVar[bool] = True

    def apply(self, engine: OrderedEngine) -> None:
        engine.reset_prefix_cache()


class Unpin(OrderBase, frozen=True, tag="unpin", array_like=True):
    """Unpin the blocks of a request, if it has pinned any."""

    request_id: str

    def apply(self, engine: OrderedEngine) -> None:
        engine.unpin(self.request_id)


class NoteTurn(OrderBase, frozen=True, tag="note_turn", array_like=True):
    """Note that the answer of a request, which has ended, is over, and whether it calls tools: then
    the next turn of its session is expected soon."""

    request_id: str
    calls_tools: bool

    def apply(self, engine: OrderedEngine) -> None:
        engine.note_turn(self.request_id, calls_tools=self.calls_tools)


class Watch(OrderBase, frozen=True, tag="watch", array_like=True):
    """Start to send `LiveFrame`s, the first complete, at least `interval_s` seconds apart; None
    stops them."""

    is_for_one: ClassVar[bool] = True

    interval_s: float | None

    def apply(self, engine: OrderedEngine) -> None:
        engine.watch(self.interval_s)


class ChargeTenants(OrderBase, frozen=True, tag="served_elsewhere", array_like=True):
    """Charge tenants for their service in other engines of the model, in prices over weights, as if
    this engine had served them."""

    served: Mapping[str, float]

    def apply(self, engine: OrderedEngine) -> None:
        engine.charge(self.served)


class PrefixQuery(msgspec.Struct, frozen=True, tag="probe", array_like=True):
    """A question: the prefix hit of a prompt under these sharing terms."""

    token_ids: tuple[int, ...]
    sharing: SharingTerms

    def answer(self, engine: OrderedEngine) -> PrefixProbe:
        """Return the engine's answer."""
        return engine.probe(self.token_ids, self.sharing)

    def best(self, answers: Iterable[PrefixProbe]) -> PrefixProbe:
        """Return the longest prefix hit of several engines."""
        return max(answers, key=lambda each: each.num_cached)


Order: TypeAlias = ResetPrefixCache | Unpin | NoteTurn | Watch | ChargeTenants
Question: TypeAlias = PrefixQuery
Answer: TypeAlias = PrefixProbe
