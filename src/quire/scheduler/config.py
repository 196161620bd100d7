"""The configuration of a scheduler."""

from dataclasses import dataclass

from quire.scheduler.cost import PreemptionMode
from quire.scheduler.policy import Policy, PolicyName, QueueOrder

MAX_AGEING_S = 86_400.0
"""The most seconds in which a waiting request comes to count as one priority better."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The configuration of a scheduler. Raises ValueError for values outside their ranges.

    `watermark` is the share of the pool that an admission must leave to those running. By
    `queue_order` are served the requests that the policy holds equal. Others may
    be admitted `max_skips` times before a head of the queue that lacks blocks. With
    `wait_for_prefix` a request waits while another computes the beginning of its prompt, where it
    is sooner for it. Unless it `cuts_prompts`, a prompt is computed in one step or not at all. Of
    all blocks a share of up to `max_pinned_share` may be pinned. With `keep_sessions` the blocks of
    sessions that are expected again are evicted last, and their turns go before new sessions.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_num_queued_reqs: int
    watermark: float = 0.01
    scheduling_policy: PolicyName = PolicyName.FCFS
    priority_ageing_s: float = 30.0
    queue_order: QueueOrder = QueueOrder.ARRIVAL
    max_skips: int = 16
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    wait_for_prefix: bool = True
    cuts_prompts: bool = True
    max_pinned_share: float = 0.5
    keep_sessions: bool = True

    @property
    def policy(self) -> Policy:
        return Policy(self.scheduling_policy, self.priority_ageing_s)

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"--max-num-seqs is {self.max_num_seqs}, must be 1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}, must be at least "
                f"--max-num-seqs ({self.max_num_seqs}), or some running request would get no token"
            )
        if self.max_model_len < 2:
            raise ValueError(f"--max-model-len is {self.max_model_len}, must be 2 or more")
        if self.max_num_queued_reqs < 0:
            raise ValueError(
                f"--max-num-queued-reqs is {self.max_num_queued_reqs}, must be 0 or more"
            )
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}, must be in [0, 1)")
        if not 0 < self.priority_ageing_s <= MAX_AGEING_S:
            raise ValueError(
                f"--priority-ageing-s is {self.priority_ageing_s}, must be above 0 and at most "
                f"{MAX_AGEING_S:.0f} (a day), or a stream of better requests would hold back "
                "another one for ever"
            )
        if self.max_skips < 0:
            raise ValueError(f"--max-skips is {self.max_skips}, must be 0 or more")
        if not 0 <= self.max_pinned_share <= 1:
            raise ValueError(f"--max-pinned-share is {self.max_pinned_share}, must be in [0, 1]")
