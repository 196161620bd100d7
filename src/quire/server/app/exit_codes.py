"""The exit codes of the `quire` command, beside 0."""

FAILED_START = 1
USAGE_ERROR = 2
DIFFERS = 1
"""A replay decided otherwise than its record."""
KILLED_BY = 128
"""The exit codes of what a signal ended begin here, as a shell has them."""
