"""All that an engine has told of blocks and requests, so that who comes later is told it too."""

from quire.cache.live.block_watch import HolderSet, apply_runs
from quire.scheduler.live.live_frame import LiveFrame, LivePace, LiveProgress, LiveRequest

_UNTOLD = -1


class EnginePicture:
    """Folds the frames of one engine, of which the first is whole."""

    def __init__(self, num_blocks: int) -> None:
        self._codes = [_UNTOLD] * num_blocks
        self.sets: dict[int, HolderSet] = {}
        self._requests: dict[int, LiveRequest] = {}
        self._progress: dict[int, LiveProgress] = {}
        self._num_unlisted = 0
        self._pace: LivePace | None = None

    def apply(self, frame: LiveFrame) -> None:
        """Take in a frame. Raises ValueError for one that does not fit."""
        apply_runs(self._codes, frame.runs)
        self.sets.update(frame.sets)
        self._num_unlisted = frame.num_unlisted
        self._pace = frame.pace
        for request in frame.entered:
            self._requests[request.number] = request
        for progress in frame.progress:
            event = progress.event
            if event is None:
                event = self._progress[progress.number].event
            self._progress[progress.number] = progress._replace(event=event)
        for number in frame.left:
            del self._requests[number], self._progress[number]
        if frame.left:
            left = set(frame.left)
            self.sets = {code: each for code, each in self.sets.items() if left.isdisjoint(each)}

    def whole(self) -> LiveFrame:
        """Return a frame that tells all."""
        runs: list[int] = []
        for block_id, code in enumerate(self._codes):
            if runs and runs[-1] == code:
                runs[-2] += 1
            else:
                runs += (block_id, 1, code)
        return LiveFrame(
            is_whole=True,
            runs=runs,
            sets=list(self.sets.items()),
            entered=list(self._requests.values()),
            left=[],
            progress=list(self._progress.values()),
            num_unlisted=self._num_unlisted,
            pace=self._pace,
        )
