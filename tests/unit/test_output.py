"""Lines that learners print come out in whole lines, with the rank before each, and none of it is lost."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.runtime.launch.output import BAR_SECONDS, LONGEST_LINE, Interruptions, LineBuffer
from support.launched import LAUNCH
from support.processes import run_python
from support.until import until


def cut(pieces: Sequence[bytes], seconds: float = 0.0) -> list[bytes]:
    """The part shown of a stream that comes in these pieces, so far apart."""
    shown: list[bytes] = []
    lines = LineBuffer(shown.append)
    for number, piece in enumerate(pieces):
        lines.take(piece, number * seconds)
    lines.end()
    return shown


@given(st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\r", b"")), max_size=8))
def test_however_a_stream_is_cut_its_lines_come_out(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    assert cut(pieces) == (expected if expected[-1] else expected[:-1])


def test_a_line_that_is_written_over_is_shown_as_it_ends() -> None:
    bar = [b"\r  0%|   |", b"\r 50%|#  |", b"\r100%|###|", b"\n", b"next\n"]
    assert cut(bar) == [b"100%|###|", b"next"]
    assert cut([b"".join(bar)]) == [b"100%|###|", b"next"]
    assert cut([b" 50%\r", b"100%\r", b"\n"]) == [b"100%"]
    assert cut([b"50%|#\r", b"     \r", b"done\n"]) == [b"done"], "a bar that is wiped away"
    assert cut([b"one\r\n", b"two\r", b"\n", b"\r\n"]) == [b"one", b"two", b""], "lines of another system"
    assert cut([b"\r 40%", b"\r 50%"]) == [b" 50%"], "whoever writes it is killed"


def test_a_long_bar_is_shown_now_and_then() -> None:
    bar = [f"\r{number}%".encode() for number in range(100)]
    shown = cut([*bar, b"\n"], BAR_SECONDS / 4)
    assert 20 <= len(shown) <= 26
    assert shown[-1] == b"99%"
    lines = LineBuffer(shown.append)
    lines.take(b"1%\r", 0.0)
    shown.clear()
    lines.look(BAR_SECONDS - 1)
    assert shown == []
    lines.look(BAR_SECONDS)
    lines.look(3 * BAR_SECONDS)
    assert shown == [b"1%"], "a bar that stands still is shown once"


def test_a_line_without_end_is_broken_and_nothing_of_it_lost() -> None:
    pieces = [b"x" * 1000] * 200
    shown = cut(pieces)
    assert b"".join(shown) == b"".join(pieces)
    assert max(map(len, shown)) <= LONGEST_LINE + 1000


TRACEBACK = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 7, in <module>',
    b"    main()",
    b'  File "train.py", line 3, in main',
    b"    time.sleep(1)",
]


def test_an_interruption_is_one_line_and_other_faults_are_shown_whole() -> None:
    shown: list[bytes] = []
    show = Interruptions(shown.append)
    for line in [*TRACEBACK, b"KeyboardInterrupt"]:
        show(line)
    assert shown == [*TRACEBACK, b"KeyboardInterrupt"], "nobody has pressed Ctrl-C"
    shown.clear()
    show.on = True
    for line in [b"before", *TRACEBACK, b"KeyboardInterrupt", b"between", *TRACEBACK, b"ValueError: 7", *TRACEBACK[:3]]:
        show(line)
    show.end()
    interrupted = b'KeyboardInterrupt (File "train.py", line 3, in main)'
    assert shown == [b"before", interrupted, b"between", *TRACEBACK, b"ValueError: 7", *TRACEBACK[:3]]


# The launcher itself --------------------------------------------------------------------------------------------------


def launched(folder: Path, script: str, *options: str, learners: int = 2, status: int = 0) -> tuple[str, str]:
    """Standard output and error of learners that run `script`."""
    file = folder / "script.py"
    file.write_text(script)
    done = run_python(*LAUNCH[1:], str(learners), *options, str(file), expect=status)
    return done.stdout, done.stderr


def by_rank(text: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        said = re.fullmatch(r"\[(\d)\] (.*)", line)
        assert said, line
        found.setdefault(int(said[1]), []).append(said[2])
    return found


def test_lines_of_learners_are_whole_and_have_their_rank(tmp_path: Path) -> None:
    """Both write much at once, in pieces, to both streams, through pipes that are full all the time."""
    script = """
import os, sys
rank = os.environ["ROUNDELAY_RANK"]
for number in range(3000):
    for stream in (1, 2):
        for piece in (f"{rank} {number} ", "x" * 100, "\\n"):
            os.write(stream, piece.encode())
os.write(1, b"the end")
"""
    for text, last in zip(launched(tmp_path, script), (["the end"], []), strict=True):
        found = by_rank(text)
        for rank in range(2):
            assert found[rank] == [f"{rank} {number} {'x' * 100}" for number in range(3000)] + last


def test_nothing_is_lost_when_a_learner_is_killed(tmp_path: Path) -> None:
    script = "import os, signal\nprint('one')\nprint('two', end='')\nos.kill(os.getpid(), signal.SIGKILL)"
    out, error = launched(tmp_path, script, learners=1, status=128 + signal.SIGKILL)
    assert by_rank(out) == {0: ["one", "two"]}
    assert error == "roundelay: learner 0 ended with status 137.\n"


def test_bytes_that_are_no_text_come_through(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; os.write(1, bytes(range(11, 256)) + b'\\n')")
    done = subprocess.run([*LAUNCH, "1", str(script)], capture_output=True, timeout=220, check=True)
    assert done.stdout == b"[0] " + bytes(range(14, 256)) + b"\n", "what a carriage return wrote over is gone"


def test_a_process_left_behind_does_not_keep_the_launcher(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
open({str(tmp_path / "left")!r}, "w").write(str(left.pid))
print("the end")
"""
    out, _ = launched(tmp_path, script, learners=1)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert by_rank(out) == {0: ["the end"]}


def test_learners_may_have_the_terminal_themselves(tmp_path: Path) -> None:
    script = "import os, sys; os.write(1, f'{os.readlink(\"/proc/self/fd/1\")}\\n'.encode())"
    with open(tmp_path / "out", "w") as out:
        (tmp_path / "script.py").write_text(script)
        subprocess.run([*LAUNCH, "1", "--no-prefix", str(tmp_path / "script.py")], stdout=out, timeout=220, check=True)
    assert (tmp_path / "out").read_text() == f"{tmp_path / 'out'}\n"


def test_a_reader_that_goes_away_is_no_reason_to_wait(tmp_path: Path) -> None:
    """As in `roundelay launch ... | head`: the learners are told by the kernel, as without a launcher between."""
    script = tmp_path / "script.py"
    script.write_text("import os\nwhile True: os.write(1, b'more\\n')")
    launcher = subprocess.Popen([*LAUNCH, "2", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stderr is not None
    assert launcher.stdout.readline() in (b"[0] more\n", b"[1] more\n")
    launcher.stdout.close()
    error = launcher.stderr.read()
    assert launcher.wait(100) != 0
    assert b"BrokenPipeError" in error
    launcher.stderr.close()


def test_a_reader_that_does_not_read_is_waited_for_and_ctrl_c_still_ends_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import os\nopen({str(tmp_path)!r} + '/' + str(os.getpid()), 'w')\nwhile True: print('x' * 99)")
    launcher = subprocess.Popen([*LAUNCH, "2", str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    until(lambda: len([file for file in tmp_path.iterdir() if file.name.isdigit()]) == 2)
    out = launcher.stdout
    assert out is not None
    until(lambda: bool(select.select([out], [], [], 0)[0]))
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(100) == 130
    out.close()


def test_ctrl_c_says_where_each_learner_was_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('ready')\ntime.sleep(1000)\n")
    launcher = subprocess.Popen([*LAUNCH, "2", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    for _ in range(2):
        launcher.stdout.readline()
    launcher.send_signal(signal.SIGINT)
    _, error = launcher.communicate(timeout=220)
    assert launcher.returncode == 130
    place = rf'\(File "{re.escape(str(script))}", line [23], in <module>\)'
    one, other = sorted(error.splitlines())
    assert re.fullmatch(rf"\[0\] KeyboardInterrupt {place}", one)
    assert re.fullmatch(rf"\[1\] KeyboardInterrupt {place}", other)


def test_a_module_is_run_as_python_would(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys; print(__name__, sys.argv[1:])")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = run_python(*LAUNCH[1:], "1", "-m", "hello", "-n", "7", env={**os.environ, "PYTHONPATH": paths})
    assert done.stdout == "[0] __main__ ['-n', '7']\n"


@pytest.mark.parametrize("names", [(), ("--torchrun-names",)])
def test_scripts_believe_that_they_are_alone_unless_they_are_told(tmp_path: Path, names: tuple[str, ...]) -> None:
    """This holds whatever is set where the launcher is started."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, roundelay\n"
        "print(roundelay.rank(), roundelay.local_rank(), roundelay.learners(),\n"
        "      *(os.environ.get(name) for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')),\n"
        "      'MASTER_PORT' in os.environ, any(name.startswith('TORCHELASTIC') for name in os.environ))"
    )
    outside = {"RANK": "5", "WORLD_SIZE": "9", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "5"}
    environment = {**os.environ, **outside, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(*LAUNCH[1:], "2", *names, str(script), env=environment)
    ranks = ["{0} 2 {0} 2 True" if names else "None None None None False"] * 2
    expected = [f"[{rank}] {rank} {rank} 2 {told.format(rank)} False" for rank, told in enumerate(ranks)]
    assert sorted(done.stdout.splitlines()) == expected
