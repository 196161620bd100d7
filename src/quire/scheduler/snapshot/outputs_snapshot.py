"""A snapshot of the expected lengths of outputs, by the numbers of tenants."""

from typing import NamedTuple

from quire.scheduler.expectations.life_table import LifeTable
from quire.scheduler.expectations.outputs import OutputExpectations
from quire.scheduler.snapshot.arrival import TenantNumbers, tenant_of


class LifeTableSnapshot(NamedTuple):
    """The fields of `LifeTable`."""

    exposed: list[float]
    ended: list[float]


class OutputsSnapshot(NamedTuple):
    """The table of all outputs, and those of tenants and endpoints, the oldest first."""

    of_all: LifeTableSnapshot
    groups: list[tuple[int, str, LifeTableSnapshot]]


def snapshot_outputs(outputs: OutputExpectations, tenants: TenantNumbers) -> OutputsSnapshot:
    """Return a snapshot, with the numbers of tenants."""
    return OutputsSnapshot(
        _snapshot(outputs._all),
        [
            (tenants.number(tenant), endpoint, _snapshot(table))
            for (tenant, endpoint), table in outputs._groups.items()
        ],
    )


def restore_outputs(outputs: OutputExpectations, snapshot: OutputsSnapshot) -> None:
    """Restore new expectations from the snapshot."""
    outputs._all = _restored(snapshot.of_all)
    outputs._groups = {
        (tenant_of(number), endpoint): _restored(table)
        for number, endpoint, table in snapshot.groups
    }


def _snapshot(table: LifeTable) -> LifeTableSnapshot:
    return LifeTableSnapshot(list(table.exposed), list(table.ended))


def _restored(snapshot: LifeTableSnapshot) -> LifeTable:
    table = LifeTable()
    table.exposed, table.ended = list(snapshot.exposed), list(snapshot.ended)
    return table
