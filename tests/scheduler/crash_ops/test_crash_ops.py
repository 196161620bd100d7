"""A small part of `make crash-ops`, and faults that it sees."""

from collections.abc import Callable

import pytest

from quire.cache.block_pool import AccountsError
from quire.cache.block_table import BlockTable
from quire.cache.charges.payers import Payers
from quire.cache.kv_cache import KVCache
from quire.scheduler.request import NewRequest, Request, ResumedOutput
from quire.scheduler.request_builder import RequestBuilder
from quire.scheduler.usage.ledger import UsageLedger, UsageTotals
from tests.scheduler.crash_ops.machine import CrashMachine

NAMES = ("crash", "resumed", "abort", "reset", "preempted", "swapped out", "tokens forked")
URGENT = "preempted for urgent ones"
TARGETS = ("first tokens in time", "first tokens late", "tokens in time", "tokens late")
CHARGED = ("blocks of a", "blocks of b", "blocks of nobody", "lost tokens", "wasted tokens")


def test_random_operations_with_crashes_keep_the_invariants() -> None:
    machine = CrashMachine(0)
    machine.run(14_000)
    assert min(machine.num_done[name] for name in (*NAMES, URGENT, *CHARGED, *TARGETS)) > 10


def forgets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = KVCache.release, [0]

    def sometimes(cache: KVCache, table: BlockTable) -> None:
        calls[0] += 1
        if calls[0] % 50:
            release(cache, table)

    monkeypatch.setattr(KVCache, "release", sometimes)


def forgets_what_was_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = RequestBuilder.resumed

    def forgetful(
        builder: RequestBuilder,
        new: NewRequest,
        resumed: ResumedOutput,
        now: float,
        *,
        is_ready: bool,
    ) -> Request:
        request = restore(builder, new, resumed, now, is_ready=is_ready)
        request.num_scored = 1
        return request

    monkeypatch.setattr(RequestBuilder, "resumed", forgetful)


def forgets_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    open_table = KVCache.open_table
    monkeypatch.setattr(KVCache, "open_table", lambda cache, *_: open_table(cache))


def charges_nobody_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block whose payer leaves is charged to nobody, though others hold it."""
    drop = Payers.drop

    def forgetful(payers: Payers[int], block: int, payer: str) -> None:
        drop(payers, block, payer)
        payers.changes.clear()

    monkeypatch.setattr(Payers, "drop", forgetful)


def counts_for_the_total_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = UsageLedger.accounts

    def total_alone(ledger: UsageLedger, tenant: str) -> tuple[UsageTotals, UsageTotals]:
        return (accounts(ledger, tenant)[0], UsageTotals())

    monkeypatch.setattr(UsageLedger, "accounts", total_alone)


FAULTS = (
    *(forgets_blocks, forgets_what_was_scored, forgets_salts),
    *(charges_nobody_after_the_first, counts_for_the_total_alone),
)


@pytest.mark.parametrize("plant", FAULTS)
def test_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, AccountsError, KeyError, IndexError)):
        CrashMachine(0).run(6_000)
