"""The command line: slips are named with what was meant, no number is taken that means nothing, all help is there."""

import argparse
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.algorithms.codecs import CODECS
from roundelay.cli import _parse, _parsers, main
from roundelay.commands import arguments
from roundelay.commands.examples import FIRST_STEPS
from roundelay.core.errors import UserError
from roundelay.runtime.base import parse_straggler
from support.processes import run_python

COMMANDS = _parsers()[1]
NUMBERS = {
    "count": arguments.count,
    "whole": arguments.whole,
    "positive": arguments.positive,
    "non_negative": arguments.non_negative,
    "share": arguments.share,
}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["trian", "demo"], "there is no command 'trian'. Did you mean train?"),
        (["zzz"], "there is no command 'zzz'. `roundelay help` lists all."),
        (["help", "trian"], "Did you mean train?"),
        (["train", "demo", "--stratgy", "adpsgd", "--exp", "x"], "no option --stratgy. Did you mean --strategy?"),
        (["train", "demo", "--stratgy", "adpsgd"], "no option --stratgy. Did you mean --strategy?"),
        (["train", "--stratgy=adpsgd"], "no option --stratgy. Did you mean --strategy?"),
        (["train", "--exp", "--lerners", "4"], "no option --lerners. Did you mean --learners?"),
        (["launch", "--lerners", "4", "x.py", "--anything"], "no option --lerners. Did you mean --learners?"),
        (["--exp", "x", "train"], "there is no option --exp."),
        (["train"], "the following arguments are required: recipe, --exp. See `roundelay help train`."),
        (["compare"], "the following arguments are required: recipe, --strategies."),
        (
            ["train", "an4", "--exp", "x", "training.minibatch=256,1024"],
            "`roundelay compare an4 --strategies NAME train",
        ),
        (["train", "an4", "--exp", "x", "strategy.period=5,20"], "--strategies NAME strategy.period=5,20` trains each"),
        (["train", "an4", "--exp", "x", "training.minibatch=0"], "0 frames for 1 learner: give at least one each"),
        (["train", "demo", "--exp", "x", "max_epochs"], "max_epochs is neither an option nor an override"),
        (["report", "a", "--out"], "argument --out: expected one argument"),
        (["status", "a", "b"], "status: takes no further words, and there is b."),
        (["list", "strategie"], "Did you mean strategies?"),
        (["prepare", "librispech"], "Did you mean librispeech?"),
        (["train", "demo", "--exp", "x", "--wire", "bf61"], "Did you mean bf16?"),
        (["list", "strategies", "demo"], "list strategies takes no recipe"),
        (["simulate", "--learners", "0"], "argument --learners: '0' is not a whole number of 1 or more"),
        (["simulate", "--stability", "4,0"], "'4,0' is not whole numbers of 1 or more with commas"),
        (["compare", "demo", "--strategies", "ssgd", "--learners", "1;2"], "'1;2' is not whole numbers"),
        (["train", "demo", "--exp", "x", "--straggler", "1:0.5x"], "is not RANK:FACTORx, with a factor of 1 or more"),
        (["train", "demo", "--exp", "x", "--straggler", "1:+nan"], "is not RANK:FACTORx"),
        (["status", "x", "--watch", "nan"], "argument --watch: 'nan' is not a number above 0"),
        (["simulate", "--jitter", "-0.1"], "argument --jitter: '-0.1' is not a number of 0 or more"),
        (["prepare", "demo", "--max-bad-share", "1.5"], "'1.5' is not a number from 0 to 1"),
        (["train", "kald", "--exp", "x"], "no recipe 'kald'. Did you mean kaldi? Give a YAML file"),
        (["advise"], "advise has to know the machines: give a cluster's YAML file"),
        (["train", "an4", "--exp", "x", "--set", "training.means=glo"], "training.means is 'glo': choose one of"),
        (["align", "an4", "--set", "align.mono_passes=x"], "align.mono_passes is 'x': expected a whole number"),
    ],
)
def test_a_slip_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert named in capsys.readouterr().err


def test_what_is_not_a_slip(capsys: pytest.CaptureFixture[str]) -> None:
    """Options shortened, joined, with values that look like options; what stands behind a command to launch."""
    assert _parse(["train", "demo", "--exp=x", "--learn", "4"]).learners == 4
    launched = _parse(["launch", "-n4", "train.py", "--anything", "-x"])
    assert (launched.learners, launched.command) == (4, ["train.py", "--anything", "-x"])
    assert _parse(["launch", "-n", "2", "x", "--exp"]).command == ["x", "--exp"]
    options = _parse(["train", "demo", "a.b=1", "--exp", "x", "c.d=-1", "--record", "e.f=[1, 2]"])
    assert options.overrides == ["a.b=1", "c.d=-1", "e.f=[1, 2]"]
    assert _parse(["align", "demo", "a.b=-x -y"]).overrides == ["a.b=-x -y"]


def examples_of(command: argparse.ArgumentParser) -> list[str]:
    return [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]


def options_of(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in command.options if action.dest != "help"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option has a line, every command an example; `help X` and `X --help` are one text."""
    for action in options_of(COMMANDS[name]):
        assert action.help, (name, action.dest)
        assert len(action.help.split()) > 1 or action.dest == "shell", (name, action.dest)
        if isinstance(action.default, int | float) and not isinstance(action.default, bool):
            assert f"default: {action.default:g}" in action.help or action.const, (name, action.dest)
    assert main(["help", name]) == 0
    text = capsys.readouterr().out
    assert all(line in text for line in examples_of(COMMANDS[name]))
    assert examples_of(COMMANDS[name])
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("line", [line for command in COMMANDS.values() for line in examples_of(command)])
def test_examples_are_commands(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    assert words[0] == "roundelay"
    assert _parse(words[1:]).run


def test_bare(capsys: pytest.CaptureFixture[str]) -> None:
    """The first commands, each of which there is."""
    assert main([]) == 0
    assert FIRST_STEPS in capsys.readouterr().out
    named = re.findall(r"roundelay ([a-z]+)", FIRST_STEPS)
    assert len(named) > 5
    assert {name for name in named if name != "help"} <= COMMANDS.keys()
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    assert all(f"    {name} " in out or f"    {name}\n" in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_number_is_taken_as_it_comes(name: str) -> None:
    """Every number of every command has a type that says which numbers mean something."""
    for action in options_of(COMMANDS[name]):
        assert action.type not in (int, float), (name, action.dest)
        if isinstance(action.default, int | float) and action.nargs != 0 and action.type is not None:
            assert action.type in NUMBERS.values(), (name, action.dest)


@given(st.sampled_from(sorted(NUMBERS)), st.floats() | st.integers() | st.text(max_size=4))
def test_numbers(kind: str, value: float | str) -> None:
    """A number that is taken is finite and in its range; any other is refused with its text."""
    refused, taken = "", 0.0
    try:
        taken = NUMBERS[kind](str(value))
    except argparse.ArgumentTypeError as error:
        refused = str(error)
    if refused:
        assert repr(str(value)) in refused
        if isinstance(value, int):
            assert value < 0 or (value == 0 and kind in ("count", "positive")) or (value > 1 and kind == "share")
        return
    least = {"count": 1, "positive": 5e-324}.get(kind, 0)
    assert least <= taken <= (1 if kind == "share" else 1.8e308)
    assert float(str(value)) == float(taken)


@given(st.integers(0, 99), st.floats(1, 1e9), st.floats(0, 1e9))
def test_stragglers(rank: int, factor: float, seconds: float) -> None:
    """A text that passes here is one the recipe takes."""

    for text, expected in ((f"{rank}:{factor}x", (factor, 0.0)), (f"{rank}:+{seconds}", (1.0, seconds))):
        found = parse_straggler(arguments.straggler(text))
        assert (found.rank, found.factor, found.seconds) == (rank, *expected)


WORDS = [
    *COMMANDS,
    *(name for command in COMMANDS.values() for a in options_of(command) for name in a.option_strings),
    "--hlep",
    "-",
    "--",
    "-1",
    "x",
    "0",
    "nan",
    "kaldi",
    "a.b=1",
    "1,4",
    "demo",
    "-n3",
    "=",
    "--exp=",
    "1:3x",
    "",
]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), min_size=1, max_size=6))
def test_any_words(words: list[str]) -> None:
    """They are a command, or an error of the user's; help and versions are printed; never anything else."""
    status: object = 0
    try:
        assert callable(_parse(words).run)
    except UserError:
        pass
    except SystemExit as ended:  # after help or the version
        status = ended.code
    assert status == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["strategies"], "    period=20  local steps between two communications [whole number of 1 or more]"),
        (["strategies"], "adpsgd: Asynchronous decentralized SGD with pair averages."),
        (["topologies"], "exponential"),
        (["recipes"], "mini_librispeech_blstm"),
        (["options"], "corpus=(must be given)  folder of the prepared corpus"),
        (
            ["options"],
            "training.wire=auto  several hosts, codec of rows and gradients on the network where the strategy says "
            "none; auto sends rows that no learner waits for by the speed of the link, and all else in fp32 "
            f"[{', '.join(('auto', *CODECS))}]",
        ),
        (["options", "an4_blstm"], "model.name=blstm"),
        (["options", "an4_blstm", "--quiet"], "model.name=blstm"),
        (["options", "demo"], "optimizer.momentum=0.9  momentum [number from 0 to below 1]"),
        ([], "topologies"),
    ],
)
def test_list(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *words]) == 0
    assert named in capsys.readouterr().out


@pytest.mark.parametrize("what", ["", "strategies", "topologies", "recipes", "codecs", "corpora", "options", "units"])
def test_list_for_programs(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *what.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["list", *what.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() for line in lines)


def test_help_of_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "prepare", "kaldi"]) == 0
    assert "\nkaldi: A corpus of your own in Kaldi data directories." in capsys.readouterr().out
    assert main(["help", "decode", "split"]) == 0
    assert "split: recognise this split" in capsys.readouterr().out
    assert main(["help", "prepare", "nix"]) == 2
    assert "prepare has no word or option 'nix'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="pip install roundelay[completion]")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "--strategy" in out
    assert "export-alignment" in out


@pytest.mark.parametrize(("number", "mendable"), [(errno.EROFS, True), (errno.ENOSPC, True), (errno.EBADF, False)])
def test_a_folder_that_cannot_be_written_is_named(
    number: int, mendable: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any command; other errors of the system are defects, with a traceback."""

    def run(options: argparse.Namespace) -> None:
        raise OSError(number, os.strerror(number), "exp/mine/graphs")

    monkeypatch.setattr("roundelay.commands.lists._list", run)
    with nullcontext() if mendable else pytest.raises(OSError, match="Bad file"):
        assert main(["list", "strategies"]) == 2
        assert capsys.readouterr().err.startswith(f"roundelay: exp/mine/graphs: {os.strerror(number)}. Mend that")


OLD_RUN = Path(__file__).parents[1] / "data" / "version_0_1" / "speech" / "exp" / "finished"


@pytest.mark.parametrize(
    "words",
    [["list", "options"], ["status", str(OLD_RUN), "--json"], ["status", str(OLD_RUN)], []],
)
def test_a_command_that_nobody_reads_ends_without_a_word(words: list[str]) -> None:
    """As `roundelay ... | head` makes it: the reader is gone. Tables and JSON are printed in ways of their own."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "roundelay", *words], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_command_without_standard_output_ends_as_ever() -> None:
    command = shlex.join([sys.executable, "-m", "roundelay", "status", str(OLD_RUN), "--json"])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


NOT_THERE = (
    "decode nothere",
    "pack nothere:2 --out new",
    "transcribe nothere x.wav",
    "serve nothere",
    "evaluate nothere --data x",
    "finetune nothere --data x --out new",
    "realign nothere --out new",
    "replay nothere",
    "checkpoints nothere",
    "report nothere",
    "status nothere",
    "inspect nothere",
    "features nothere",
    "export onnx nothere --out new",
    "prepare kaldi --source nothere --lexicon x",
    "import-alignment kaldi --corpus nothere --ali x --out new",
    "simulate nothere.yaml",
    "advise nothere.yaml",
    "train nothere --exp new",
    "align nothere",
)
SLIPS = (
    "train demmo --exp x",
    "train demo --exp x training.minibach=3",
    "train demo --exp x --strategy sdg",
    "train demo --exp x --strategy bmuf,periode=3",
    "train demo --exp x --strategy adpsgd:square",
    "train demo --exp x training.minibatch=many",
    "train demo --learners 0 --exp x",
    "align demo align.tide_states=3",
    "compare demo --strategies sdg",
    "compare demo --strategies ssgd training.minibach=3",
    "simulate --strategy sdg",
    "simulate --learners 0",
    "simulate --stability 0",
    "decode . --set decode.beem=3",
    "trian demo",
    "train demo --stratgy adpsgd",
    "list options demmo",
    "doctor --hosts x",
    "doctor --listen 127.0.0.1:0",
    "advise",
)


def test_slips_are_named_before_torch_is_loaded(tmp_path: Path) -> None:
    """It takes ten times as long to load as the rest."""
    (tmp_path / "recipe.yaml").write_text("name: x\ncorpus: data\nalignment: ali\n")
    script = "import sys\nfrom roundelay.cli import main\n"
    script += f"for words in {NOT_THERE + SLIPS!r}:\n    assert main(words.split()) == 2, words\n"
    done = run_python("-c", f"{script}assert 'torch' not in sys.modules\n", where=tmp_path)
    said = "".join(done.stderr.split()).split("roundelay:")
    named = [line for line in said if line.startswith(("nothere", "norecipe'nothere'"))]
    assert len(named) == len(NOT_THERE), done.stderr


NO_TORCH = f"""
import sys
def loaded(*names): return [name for name in names if name in sys.modules]
import roundelay
roundelay.rank()
assert not hasattr(roundelay, "detach")
import roundelay.reports
assert not loaded("torch", "numpy"), "reports"
from roundelay.cli import main
main(["status", {str(OLD_RUN)!r}])
assert not loaded("torch"), "status"
import roundelay_speech.api.serving, roundelay_speech.transcription.serving.serve
assert not loaded("torch"), "a server, which begins and ends at once; its memory is its processes'"
"""


def test_what_does_not_compute_loads_no_torch() -> None:
    run_python("-c", NO_TORCH)


def test_torch_is_imported_without_garbage_collection(tmp_path: Path) -> None:
    """By a command, and by a function of the package; collections are on again afterwards."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import gc\nprint('collects', gc.isenabled())\nraise ImportError\n")
    for script in (
        "from roundelay.cli import main\ntry:\n    main(['doctor'])\nexcept ImportError: pass",
        "import roundelay\ntry:\n    roundelay.attach\nexcept ImportError: pass",
    ):
        done = run_python("-c", f"{script}\nimport gc; print('collects', gc.isenabled())", where=tmp_path)
        assert done.stdout.split() == ["collects", "False", "collects", "True"], done


@pytest.mark.parametrize("text", ["1:-3x", "1:0.5x", "1:nanx", "1:infx", "1:+-2", "1:+inf", "1", "x:3x"])
def test_what_is_not_slow_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="straggler"):
        parse_straggler(text)
