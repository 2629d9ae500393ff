"""A virtual host of `roundelay scaling --hosts`: follows the first host, with options from the standard input."""

import json
import sys
from pathlib import Path

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.grids.scaling import WantedWays, scale
from roundelay.job import Interrupt


def main() -> int:
    """Do this host's part of all trainings that the first host orders; return the exit status."""
    told = json.load(sys.stdin)
    wanted = WantedWays(**told["wanted"])
    try:
        folder = Path(told["folder"]) if told["folder"] else None
        scale(told["source"], told["given"], wanted, folder, Silent(), lambda _: None, Interrupt())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
