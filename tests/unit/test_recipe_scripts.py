"""The scripts in recipes/: every command in them is one that there is, in an order that makes sense."""

import os
import shlex
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest

from roundelay.cli import _parse
from roundelay.grids.axes import check_axes, is_override, read_axes
from roundelay_speech.recipes.known import check_recipe
from roundelay_speech.recipes.recipe import load_recipe

SCRIPTS = Path(__file__).parents[2] / "recipes"
FOLDERS = {"an4", "fsdd", "mini_librispeech", "librispeech", "switchboard", "li2017", "field2026", "ibm-blstm-small"}
STUB = """\
#!/usr/bin/env bash
# Writes its arguments down and leaves what the command would leave.
printf '%q ' "$@" >> log
echo >> log
out=$2 data=data/$2
while [ $# -gt 3 ]; do
  [ "$3" = --out ] && out=$4
  [ "$3" = --data ] && data=$4
  [ "$1" = train ] && [ "$3" = --exp ] && out=$4
  [ "$1" = align ] && [ "${3#alignment=}" != "$3" ] && alignment=${3#alignment=}
  set -- "$1" "$2" "${@:4}"
done
leave() { mkdir -p "$(dirname "$1")"; echo "%WER 1.00" > "$1"; }
case $1 in
  prepare) leave "$data/corpus.json" ;;
  align) leave "${alignment:-exp/$2/alignment}/align.json" ;;
  pack) leave "$out/packed.json"; leave "$out/README.md" ;;
  adapt) leave "exp/$2/adaptation/features.yaml" ;;
  realign) leave "$out/align.json" ;;
  decode) leave "$out/decode/dev/wer.txt"; leave "$out/decode/test/wer.txt" ;;
esac
"""


def check_order(commands: list[list[str]]) -> None:
    """Every command is one that exists, and what it needs was made before."""
    there: set[Path] = set()
    for words in commands:
        options = _parse(words)
        if words[0] == "prepare":
            there.add(options.data or Path("data") / options.corpus)
        elif words[0] in ("align", "train", "compare"):
            given = list(filter(is_override, getattr(options, "strategies", [])))
            axes = read_axes([*options.overrides, *given])
            recipe = load_recipe(options.recipe, axes.overrides)
            assert recipe.corpus in there
            assert words[0] == "align" or recipe.unaligned or recipe.alignment in there
            if words[0] == "compare":
                strategies = [text for text in options.strategies if text not in given]
                check_axes(axes, strategies, partial(check_recipe, options.recipe))
            there.add(recipe.aligned if words[0] == "align" else options.exp)
        elif words[0] == "adapt":
            recipe = load_recipe(options.recipe, options.overrides)
            assert recipe.alignment in there
            there.add(recipe.adaptation_folder)
        elif words[0] == "features":
            assert options.data in there
            assert any(folder.name == "adaptation" for folder in there)
        elif words[0] == "pack":
            assert there.issuperset(map(Path, options.exp))
        elif words[0] in ("realign", "decode"):
            assert there.issuperset(options.exp)
            assert words[0] == "realign" or all(Path(other.split(":")[0]) in there for other in options.others)
            there.update([options.out] if options.out else [])


@pytest.mark.parametrize(
    ("name", "arguments", "trained"),
    [
        ("an4", ["DIR", "0 1"], 5),
        ("an4/adapted", ["DIR", "0 1"], 6),
        ("an4/packed", ["DIR"], 1),
        ("fsdd", [], 1),
        ("fsdd", ["DIR", "mine"], 1),
        ("mini_librispeech", ["DIR", "words.dict", "books.txt", "0 1"], 5),
        ("mini_librispeech/adapted", ["DIR", "words.dict", "books.txt", "0 1"], 4),
        ("librispeech", ["."], 1),
        ("switchboard", ["A", "B", "C", "D"], 1),
        ("li2017", ["an4", "DIR"], 1),
        ("li2017", ["NETWORK=cldnn", "mini-librispeech", "DIR", "words.dict", "schedule.max_epochs=2"], 1),
        ("li2017", ["librispeech", "DIR"], 1),
        ("field2026", ["DIR"], 1),
        ("ibm-blstm-small", ["DIR"], 1),
    ],
)
def test_a_script_is_made_of_commands(tmp_path: Path, name: str, arguments: list[str], trained: int) -> None:
    stub = tmp_path / "bin" / "roundelay"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    for model in ("3-gram.arpa.gz", "3-gram.pruned.3e-7.arpa.gz"):
        (tmp_path / model).touch()
    given = dict(text.split("=") for text in arguments if text.startswith("NETWORK="))
    environment = {**os.environ, **given, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    script = [str(SCRIPTS / (f"{name}.sh" if "/" in name else f"{name}/run.sh")), *arguments[len(given) :]]
    first = subprocess.run(
        script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=220, check=False
    )
    assert first.returncode == 0, first.stderr
    commands = [shlex.split(line) for line in (tmp_path / "log").read_text().splitlines()]
    check_order(commands)
    trains = ("train", "compare")
    steps = ["train" if words[0] in trains else words[0] for words in commands if words[0] not in ("adapt", "features")]
    assert steps[:3] == ["prepare", "align", "train"]
    assert sum(words[0] in trains for words in commands) == trained
    # The last thing printed is what was to be found out.
    if name == "switchboard":
        assert commands[-1][:2] == ["score", "--stm"]
    elif commands[-1][0] != "compare":  # which prints its table
        assert "%WER" in first.stdout.splitlines()[-1]
    # Run again, it prepares, aligns and realigns nothing anew (train and decode see for themselves).
    subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, timeout=220, check=True)
    again = (tmp_path / "log").read_text().splitlines()[len(commands) :]
    assert {line.split()[0] for line in again} <= {"train", "compare", "decode", "score"}


def test_every_folder_of_scripts_is_tested() -> None:
    assert {folder.name for folder in SCRIPTS.iterdir()} == FOLDERS


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_results_are_told_or_it_is_said_that_there_are_none(name: str) -> None:
    results = (SCRIPTS / name / "RESULTS.md").read_text()
    assert name in ("li2017", "field2026") or load_recipe(name).name == name
    assert "%WER" in results or "not been run" in results
