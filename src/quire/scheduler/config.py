"""What a scheduler is built from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`watermark` is the share of the pool that an admission must leave to those running."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_num_queued_reqs: int
    watermark: float = 0.01

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}, must be 1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be at least "
                f"max_num_seqs ({self.max_num_seqs}), or some running request would get no token"
            )
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len is {self.max_model_len}, must be 2 or more")
        if self.max_num_queued_reqs < 0:
            raise ValueError(
                f"max_num_queued_reqs is {self.max_num_queued_reqs}, must be 0 or more"
            )
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}, must be in [0, 1)")
