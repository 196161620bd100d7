"""Counts the tokens of requests with latency targets: those in time, and those that were late."""

from dataclasses import dataclass

from quire.scheduler.request import Request


@dataclass(slots=True)
class TargetCounts:
    """Counts since the start: of first tokens, and of the later ones of outputs. Tokens that come
    together count once. Of `num_ttft_foreseen` first tokens it was expected when their requests
    came that they would be late."""

    num_ttft_met: int = 0
    num_ttft_missed: int = 0
    num_ttft_foreseen: int = 0
    num_itl_met: int = 0
    num_itl_missed: int = 0

    def note(self, request: Request, now: float) -> None:
        """Count what a request gets now, before its own times are set."""
        if request.first_token_s is None:
            target_s = request.new.target_ttft_s
            if target_s is not None:
                is_met = now - request.arrived_s <= target_s
                self.num_ttft_met += is_met
                self.num_ttft_missed += not is_met
        elif request.last_token_s is not None:
            target_s = request.new.target_itl_s
            if target_s is not None:
                gap_s = request.last_gap_s = now - request.last_token_s
                is_met = gap_s <= target_s
                request.num_late_tokens += not is_met
                self.num_itl_met += is_met
                self.num_itl_missed += not is_met
