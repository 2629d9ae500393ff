"""Runs a module as `python -m` does, in a process that is to be sent a signal: a training does not begin its last
epoch, nor an alignment its triphones, before that has come. So it comes in time, however late its sender is."""

import runpy
import sys
from typing import Any

from roundelay.loop import Run
from roundelay_speech.hmm import flat_start
from support.until import until

LAST = 3
"""The epoch, counted from 0."""


def main() -> None:
    epoch, grown = Run._epoch, flat_start._grown

    def after_a_request(self: Run) -> bool:
        if self.now.schedule.epoch == LAST:
            until(self._asked)
        return epoch(self)

    def after_a_signal(*given: Any) -> Any:
        until(lambda: False)  # its handler raises an error
        return grown(*given)

    Run._epoch = after_a_request  # type: ignore[method-assign]
    vars(flat_start)["_grown"] = after_a_signal
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
