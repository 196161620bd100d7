"""`python -m quire.server.cli` is the `quire` command."""

import sys

from quire.server.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
