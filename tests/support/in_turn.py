"""Runs scripts one after another in the same process, to save starts: `script strategy [script strategy ...]`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    pairs = sys.argv[1:]
    for script, strategy in zip(pairs[::2], pairs[1::2], strict=True):
        sys.argv = [script, "--strategy", strategy]
        sys.path.insert(0, str(Path(script).parent))
        print(f"script {Path(script).stem} {strategy}", flush=True)
        runpy.run_path(script, run_name="__main__")
