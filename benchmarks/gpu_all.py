"""Everything that a GPU can show, step by step, into one folder: tests, speeds, bandwidths, profiles.

    python benchmarks/gpu_all.py                                   # every step, the most telling first
    python benchmarks/gpu_all.py --seconds 540                    # as many as fit; the same command goes on
    python benchmarks/gpu_all.py --only rows speed --again
    python benchmarks/gpu_all.py --out gpu-here --device cpu      # the same steps, small, on a processor: do they run?
    python benchmarks/gpu_all.py --list

Each step is a process with a time limit of its own, and leaves its output, NAME.log, and most leave NAME.json or a
folder NAME. A step that fails or takes too long is ended, with all that it started, and the next one begins. The
outcome of every step is in steps.json; steps that were done are not done again, others are.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
STATE = "steps.json"
LEAST_SECONDS = 20.0
"""Left of all the time, in which another step is begun."""
GRACE_SECONDS = 10.0
"""From the request to end to the end by force."""
Ended = Literal["done", "failed", "too long"]


@dataclass(frozen=True)
class Step:
    """One step of the run, a process with a time limit.

    Attributes:
        command: arguments of the interpreter; {out} and {device} are filled in.
        seconds: time limit of the step.
        small: options added, or put in place of others, on a processor.
        side_by_side: its tests may run at the same time, where pytest-xdist is installed.
    """

    name: str
    command: Sequence[str]
    seconds: float
    small: Sequence[str] = ()
    side_by_side: bool = False


def _tests(name: str, seconds: float, *chosen: str) -> Step:
    options = ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:benchmark", "--durations=5", "-q"]
    options += ["--timeout", "330"]
    return Step(name, (*options, *chosen), seconds, side_by_side="tests/gpu" in chosen[0])


def _script(name: str, file: str, seconds: float, options: str, small: str) -> Step:
    return Step(name, (f"benchmarks/{file}", *options.split()), seconds, small.split())


TOY = "--workload toy-dnn --steps 4 --rounds 1"
STEPS = (
    _tests("tests-rows", 400, "tests/gpu/test_gpu.py"),
    _script("rows", "gpu_rows.py", 120, "--device {device} --out {out}/rows.json", "--parameters 100000 --rounds 2"),
    _script("speed-blstm", "gpu.py", 240, "--device {device} --out {out}/speed-blstm.json", TOY),
    _script("speed-dnn", "gpu.py", 200, "--workload dnn --steps 200 --device {device} --out {out}/speed-dnn.json", TOY),
    _script("share-2", "gpu.py", 420, "--learners 2 --device {device} --out {out}/share-2.json", TOY),
    _script(
        "attach-share-2",
        "gpu.py",
        420,
        "--learners 2 --attach --rounds 2 --device {device} --out {out}/attach-share-2.json",
        f"{TOY} --modes adpsgd ssgd",
    ),
    _script(
        "attach-hosts",
        "gpu.py",
        300,
        "--learners 2 --attach --hosts 2 --rounds 2 --modes adpsgd ssgd --device {device} --out {out}/hosts-2.json",
        TOY,
    ),
    _tests("tests-learners", 400, "tests/gpu/test_learners_on_gpu.py"),
    _script(
        "profile-blstm",
        "gpu_profile.py",
        180,
        "--device {device} --out {out}/profile",
        "--workload toy-dnn --steps 3",
    ),
    _script(
        "profile-dnn",
        "gpu_profile.py",
        120,
        "--workload dnn --device {device} --out {out}/profile",
        "--workload toy-blstm --steps 3",
    ),
    _tests("tests-attach", 300, "tests/gpu/test_attach_on_gpu.py"),
    _tests("tests-models", 400, "tests/gpu/test_models_on_gpu.py"),
    _script("share-4", "gpu.py", 500, "--learners 4 --rounds 2 --device {device} --out {out}/share-4.json", TOY),
    _script(
        "share-dnn",
        "gpu.py",
        400,
        "--workload dnn --learners 2 --steps 200 --rounds 2 --device {device} --out {out}/share-dnn.json",
        TOY,
    ),
    _script(
        "speed-dnn-4096",
        "gpu.py",
        200,
        "--workload dnn-4096 --steps 100 --device {device} --out {out}/speed-dnn-4096.json",
        TOY,
    ),
    _script(
        "data-wait",
        "gpu_profile.py",
        200,
        "--data --device {device} --out {out}/profile",
        "--small --steps 3 --hours 0.05",
    ),
    _tests("tests-laws", 200, "tests/laws/test_attach.py"),
)


def filled(step: Step, options: argparse.Namespace) -> list[str]:
    """Return the command of a step, with its folder and device filled in."""
    values = {"out": str(options.out), "device": options.device}
    command = [sys.executable]
    command += [part.format(**values) for part in (*step.command, *(step.small if options.device == "cpu" else ()))]
    if step.side_by_side and options.device == "cuda" and importlib.util.find_spec("xdist") is not None:
        command += ["-n", "4", "--dist", "load"]
    return command


def run(command: Sequence[str], seconds: float, log: Path, environment: dict[str, str]) -> tuple[Ended, float]:
    """Run a command for at most `seconds`, its output into `log`; return how it ended, and after how many seconds."""
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=HERE.parent, env=environment, start_new_session=True
        )
        ended: Ended = "too long"
        try:
            ended = "failed" if process.wait(seconds) else "done"
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)  # with all that it has started
            process.wait()
    return ended, time.monotonic() - started


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def go_through(steps: Sequence[Step], options: argparse.Namespace) -> dict[str, Any]:
    """Run all steps that are wanted and not done, while there is time; return the outcome of each."""
    options.out.mkdir(parents=True, exist_ok=True)
    path, until = options.out / STATE, time.monotonic() + options.seconds
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    folders = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "PYTHONUNBUFFERED": "1"}
    environment |= {"ROUNDELAY_TEST_DEVICE": options.device, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for step in steps:
        if options.only and not any(step.name.startswith(wanted) for wanted in options.only):
            continue
        if not options.again and state.get(step.name, {}).get("ended") == "done":
            continue
        seconds = min(step.seconds, until - time.monotonic())
        if seconds < LEAST_SECONDS:
            print("no time is left; the same command goes on", flush=True)
            break
        log = options.out / f"{step.name}.log"
        print(f"{step.name:16} at most {seconds:.0f} s ...", flush=True)
        ended, taken = run(filled(step, options), seconds, log, environment)
        state[step.name] = {"ended": ended, "seconds": round(taken, 1), "limit": round(seconds, 1)}
        path.write_text(json.dumps(state, indent=1) + "\n")
        print(f"{step.name:16} {ended} after {taken:.0f} s\n{_end_of(log)}", flush=True)
    return state


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line[:160]}" for line in lines[-12:])


def main() -> None:
    """Run the steps that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), default=Path("gpu-results").resolve())
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of steps, or beginnings of names")
    parser.add_argument("--again", action="store_true", help="what is done, too")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all of it")
    parser.add_argument("--list", action="store_true", help="print the steps, and nothing else")
    options = parser.parse_args()
    if options.list:
        for step in STEPS:
            print(f"{step.name:16} {step.seconds:6.0f} s   {' '.join(step.command)}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and the step under way ends, too
    state = go_through(STEPS, options)
    print("\n".join(f"{name:16} {one['ended']}" for name, one in state.items()))
    if any(one["ended"] != "done" for one in state.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
