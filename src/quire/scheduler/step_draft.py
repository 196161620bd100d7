"""The step under construction: the scheduled chunks and the remaining budget."""

from collections.abc import Sequence

from quire.cache.block_copies import BlockCopy
from quire.cache.states.state_use import StateUse
from quire.scheduler.pacing.pace import LEAST_TOKENS, PromptShare, whole_tiles
from quire.scheduler.pacing.step_work import num_pairs
from quire.scheduler.request import Request
from quire.scheduler.step import BlockIds, NewRequestData, SeqChunk, Step


class StepDraft:
    """A step that only grows.

    `tokens_left` is the rest of the step's token budget. `num_aside` requests wait although they
    would be next; a sequence is kept for each of them, and `num_reserved` blocks for all together;
    `num_unready` others wait and keep nothing. While requests are admitted before the running are
    scheduled, `num_kept` of its tokens are kept for these. The `late` prompts that run are computed
    behind all others; until then `num_for_late` tokens of prompts are kept for them. The results of
    `num_under_way` earlier steps have not come. Of prompts it computes the `share` at most, once
    that is known.
    """

    def __init__(
        self,
        max_num_batched_tokens: int,
        num_under_way: int = 0,
        late: Sequence[Request] = (),
        num_for_late: int = 0,
    ) -> None:
        self.tokens_left = max_num_batched_tokens
        self.num_under_way = num_under_way
        self.late = late
        self.num_for_late = num_for_late
        self.num_preempted = 0
        self.num_aside = 0
        self.num_reserved = 0
        self.num_unready = 0
        self.num_kept = 0
        self.share: PromptShare | None = None
        self._is_exact = bool(late)
        self._num_prompt_tokens = 0
        self._num_pairs = 0
        self._max_tokens = max_num_batched_tokens
        self._new_requests: list[NewRequestData] = []
        self._chunks: list[SeqChunk] = []

    def set_aside(self, num_blocks: int) -> None:
        """Note that a request waits although it would be next: a sequence and `num_blocks` are kept
        for it.
        """
        self.num_aside += 1
        self.num_reserved += num_blocks

    def room(self, context: int = 0) -> int:
        """Return how many tokens of a prompt, of which `context` are computed, the step may yet
        compute. Beside late prompts each context counts for itself: a token behind many others
        takes longer."""
        share, kept = self.share, self.num_for_late
        left = self.tokens_left - self.num_kept - kept
        if share is not None and share.num_tokens is not None:
            num_tokens, pairs = self._num_prompt_tokens + kept, self._num_pairs
            left = min(left, share.num_tokens - num_tokens)
            if self._is_exact and share.time is not None:
                if kept:
                    pairs += num_pairs(self.late[0].num_computed, kept)
                fits = min(share.time.beside(num_tokens, pairs).most_tokens(context), left)
                most = max(whole_tiles(num_tokens + int(fits)), LEAST_TOKENS)
                left = min(left, most - num_tokens)
        return max(left, 0)

    def take_late(self) -> Sequence[Request]:
        """Return the late prompts that run, and keep nothing for them any more."""
        late, self.late, self.num_for_late = self.late, (), 0
        self._is_exact = True
        return late

    def has(self, request: Request) -> bool:
        """Return whether the step computes any of the request."""
        return any(chunk.request_id == request.id for chunk in self._chunks)

    def add_new_request(self, request: Request) -> None:
        """Note that the request is admitted, with all the blocks of its table."""
        block_ids = tuple(tuple(ids) for ids in request.table.block_ids)
        self._new_requests.append(NewRequestData(request.new, tuple(request.token_ids), block_ids))

    def add_chunk(
        self,
        request: Request,
        num_tokens: int,
        new_block_ids: BlockIds,
        states: StateUse | None = None,
    ) -> bool:
        """Compute the request's next `num_tokens`, and return whether they are of its prompt. If
        the last known one is among them, the next is sampled, unless the request ends with its
        prompt.
        """
        start = request.num_computed
        end = start + num_tokens
        is_last = num_tokens == request.num_left
        is_prompt = request.is_in_prompt
        if is_prompt:
            self._num_prompt_tokens += num_tokens
            self._num_pairs += num_pairs(start, num_tokens)
        samples = is_last and not request.samples_none
        self._chunks.append(SeqChunk(request.id, start, num_tokens, new_block_ids, samples, states))
        request.num_computed = end
        if samples:
            request.num_pending += 1
        self.tokens_left -= num_tokens
        return is_prompt

    def finished(
        self, number: int, finished_requests: tuple[str, ...], block_copies: tuple[BlockCopy, ...]
    ) -> Step:
        """Return the step that was written."""
        num_tokens = self._max_tokens - self.tokens_left
        return Step(
            number,
            finished_requests,
            tuple(self._new_requests),
            tuple(self._chunks),
            num_tokens,
            block_copies,
        )
