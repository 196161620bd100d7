"""The work that may be spent on a schema, whoever made it."""


class Steps:
    """Counts the steps of looking into a schema; after `most` there are no more."""

    def __init__(self, most: int) -> None:
        self._left = most

    def spend(self, num_steps: int = 1) -> bool:
        """Take some steps; return whether there were so many."""
        self._left -= num_steps
        return self._left >= 0
