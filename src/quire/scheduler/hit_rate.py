"""The hit rate is the share of the newest requests' prompts that was found in the prefix cache."""

from collections import deque

NUM_RECENT = 1000


class HitRate:
    """Sums over the last `max_requests` requests for which anything was looked up; never over
    more.
    """

    def __init__(self, max_requests: int = NUM_RECENT) -> None:
        self.num_queries = 0
        self.num_hits = 0
        self._max_requests = max_requests
        self._requests: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rate(self) -> float:
        """The share of the tokens looked up that was found; 0 where nothing was."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0

    def observe(self, num_queries: int, num_hits: int) -> None:
        """Note one request: the tokens looked up, and those found."""
        if num_queries == 0:
            return
        self._requests.append((num_queries, num_hits))
        self.num_queries += num_queries
        self.num_hits += num_hits
        if len(self._requests) > self._max_requests:
            oldest_queries, oldest_hits = self._requests.popleft()
            self.num_queries -= oldest_queries
            self.num_hits -= oldest_hits

    def reset(self) -> None:
        """Forget all requests."""
        self._requests.clear()
        self.num_queries = self.num_hits = 0
