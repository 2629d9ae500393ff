"""`python -m roundelay`, for launchers that start modules."""

import sys

from roundelay.cli import main

if __name__ == "__main__":
    sys.exit(main())
