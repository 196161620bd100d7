"""Expects how many tokens the output of a request will have, from requests of its tenant and
endpoint that have ended."""

from typing import TypeAlias

from quire.scheduler.expectations.life_table import LifeTable, low_length, mean_length
from quire.scheduler.reasons import Reason
from quire.scheduler.request import NewRequest, Request, Stopping

Group: TypeAlias = tuple[str, str]
"""A tenant and an endpoint."""

MAX_GROUPS = 256
"""The maximum number of groups; the one whose last request ended first is forgotten."""
PRIOR_WEIGHT = 4.0
"""A group's table counts beside so many outputs that are like those of all groups."""
LOW = 0.1
"""The share of outputs that are shorter than the low expectation."""
DOUBT = 2.0
"""The low expectation counts so many more outputs that had ended at once, so that nothing is
claimed of a group before it has had DOUBT / LOW of them."""
_ENDED = (Reason.STOP_TOKEN, Reason.END_OF_SEQUENCE, Reason.ABORTED)
_CUT = (Reason.MAX_TOKENS, Reason.CONTEXT_END, Reason.DEADLINE_EXCEEDED)


class OutputExpectations:
    """The lengths of outputs by group, and of all. Outputs that end by `max_tokens` alone teach
    nothing, and are expected to have as many. A stop string ends a request like a client that
    leaves, by an abort: both end an output."""

    def __init__(self) -> None:
        self._all = LifeTable()
        self._groups: dict[Group, LifeTable] = {}

    def __len__(self) -> int:
        """Return the number of groups that are known."""
        return len(self._groups)

    def note_end(self, request: Request) -> None:
        """Learn from a request that has ended, as its timeline says."""
        reason, num_outputs = request.timeline[-1].reason, request.num_outputs
        if not num_outputs or not _can_end(request.new.stopping) or reason not in _ENDED + _CUT:
            return
        group = _group_of(request.new)
        table = self._groups.pop(group, None) or LifeTable()
        self._groups[group] = table
        if len(self._groups) > MAX_GROUPS:
            del self._groups[next(iter(self._groups))]
        for each in (table, self._all):
            each.observe(num_outputs, is_cut=reason in _CUT)

    def note_refusal(self, new: NewRequest) -> None:
        """Let what is known of a request's group count less: a group of which all are refused would
        else teach nothing more."""
        table = self._groups.get(_group_of(new))
        if table is not None:
            table.fade()

    def mean(self, new: NewRequest) -> float:
        """Return the mean of the tokens that the output may be expected to have: `max_tokens`
        before any request has ended."""
        stopping, table, of_all = new.stopping, self._groups.get(_group_of(new)), self._all
        if not _can_end(stopping):
            return float(stopping.max_tokens)

        def hazard(index: int) -> float:
            prior = of_all.hazard(index)
            return prior if table is None else table.hazard(index, prior=prior, weight=PRIOR_WEIGHT)

        least = max(stopping.min_tokens, min(1, stopping.max_tokens))
        return mean_length(hazard, least, stopping.max_tokens)

    def low(self, new: NewRequest) -> int:
        """Return the tokens that only a LOW share of such outputs would stay below: few while
        little is known of the group."""
        stopping, table = new.stopping, self._groups.get(_group_of(new))
        most = stopping.max_tokens
        if not _can_end(stopping):
            return most
        least = max(stopping.min_tokens, min(1, most))
        if table is None:
            return min(least, most)
        begins = table.num_seen / (table.num_seen + DOUBT) if table.num_seen else 0.0
        share = 1 - (1 - LOW) / begins if begins else 0.0
        return low_length(table.hazard, share, least, most) if share > 0 else min(least, most)


def _group_of(new: NewRequest) -> Group:
    return new.tenant, new.endpoint


def _can_end(stopping: Stopping) -> bool:
    """Return whether a token may end the output before `max_tokens`."""
    return bool(stopping.eos_token_ids or stopping.stop_token_ids)
