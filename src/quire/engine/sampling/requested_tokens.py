"""Log probabilities of tokens that a request names, beside the sampled and the likeliest ones.

They follow from the sampled token's: of two tokens of a row, the difference of the log
probabilities is that of the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from quire.engine.host_to_device import to_device
from quire.engine.sampling.device_to_host import DeviceToHost, HostCopy
from quire.engine.sampling.sampling_state import SamplingState
from quire.scheduler.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PendingTokenLogits:
    """Logits on their way to the host: of the tokens requested by each row, one row after another,
    then of the rows' sampled tokens; float64.

    token_ids: those that each row names, by the row's index.
    """

    token_ids: dict[int, tuple[int, ...]]
    host_copy: HostCopy

    def add_to(self, logprobs: list[TokenLogprobs | None]) -> None:
        """Append to the `top` of each of these rows what it names and does not have yet."""
        logits = self.host_copy.wait().tolist()
        ends = list(accumulate(map(len, self.token_ids.values())))
        sampled = logits[ends[-1] :]
        for (row, named), end, of_sampled in zip(
            self.token_ids.items(), ends, sampled, strict=True
        ):
            scores = logprobs[row]
            if scores is None:
                continue
            known = dict(scores.top)
            for token_id, logit in zip(named, logits[end - len(named) : end], strict=True):
                known.setdefault(token_id, logit - of_sampled + scores.logprob)
            logprobs[row] = scores._replace(top=tuple(known.items()))


def fetch_requested(
    logits: Tensor, rows: Sequence[SamplingState], sampled_ids: Tensor, to_host: DeviceToHost
) -> PendingTokenLogits | None:
    """Start to fetch the logits of the tokens that rows name; None where no row names any.

    logits: [rows, vocab_size], as the model gave them. sampled_ids: int64 [rows], on their device.
    """
    token_ids = {
        index: row.sampling.logprob_token_ids
        for index, row in enumerate(rows)
        if row.sampling.logprob_token_ids
    }
    if not token_ids:
        return None
    owners = [index for index, named in token_ids.items() for _ in named]
    flat = [token_id for named in token_ids.values() for token_id in named]
    some, ids, indices = to_device(
        [torch.tensor(owners), torch.tensor(flat), torch.tensor(list(token_ids))], logits.device
    )
    found = torch.cat([logits[some, ids], logits[indices, sampled_ids[indices]]])
    return PendingTokenLogits(token_ids, to_host.fetch(found.double()))
