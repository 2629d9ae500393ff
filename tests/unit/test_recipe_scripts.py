"""The scripts in recipes/: every command in them is one that the command line takes, and in an order that makes sense."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from roundelay.recipes.recipe import load_recipe

SCRIPTS = Path(__file__).parents[2] / "recipes"
STUB = """\
#!{python}
import sys
from pathlib import Path
from roundelay.cli import _parse
from roundelay.recipes.recipe import load_recipe

options = _parse(sys.argv[1:])
print(*sys.argv[1:], file=open("log", "a"))


def leave(path, needs=()):
    for other in needs:
        assert Path(other).exists(), f"{{sys.argv[1:]}} needs {{other}}"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()


if sys.argv[1] == "prepare":
    leave(options.data or f"data/{{options.corpus}}/corpus.json")
elif sys.argv[1] in ("align", "train"):
    recipe = load_recipe(options.recipe, options.overrides)
    if sys.argv[1] == "align":
        leave(f"{{recipe.alignment}}/align.json", [f"{{recipe.corpus}}/corpus.json"])
    else:
        leave(options.exp / "results.json", [f"{{recipe.alignment}}/align.json"])
elif sys.argv[1] == "realign":
    leave(options.out / "align.json", [exp / "results.json" for exp in options.exp])
elif sys.argv[1] == "decode":
    for exp in options.exp:
        for split in ("dev", "test"):
            leave((options.out or exp) / "decode" / split / "wer.txt", [exp / "results.json"])
            (Path(options.out or exp) / "decode" / split / "wer.txt").write_text("%WER 1.00\\n")
"""


@pytest.mark.parametrize(
    ("name", "arguments", "trained"),
    [
        ("an4", ["DIR", "0 1"], 5),
        ("mini_librispeech", ["DIR", "words.dict", "books.txt", "0 1"], 5),
        ("librispeech", ["."], 1),
        ("switchboard", ["A", "B", "C", "D"], 1),
    ],
)
def test_a_script_is_made_of_commands(tmp_path: Path, name: str, arguments: list[str], trained: int) -> None:
    stub = tmp_path / "bin" / "roundelay"
    stub.parent.mkdir()
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "3-gram.arpa.gz").touch()
    environment = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    script = [str(SCRIPTS / name / "run.sh"), *arguments]
    first = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert first.returncode == 0, first.stderr
    commands = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in commands[:3]] == ["prepare", "align", "train"]
    assert sum(line.startswith("train") for line in commands) == trained
    # The last thing printed is what was to be found out.
    if name != "switchboard":
        assert "%WER" in first.stdout.splitlines()[-1]
    else:
        assert commands[-1].startswith("score --stm")
    # Run again, it prepares, aligns and realigns nothing anew (train and decode see for themselves).
    subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, timeout=100, check=True)
    again = (tmp_path / "log").read_text().splitlines()[len(commands) :]
    assert {line.split()[0] for line in again} <= {"train", "decode", "score"}


@pytest.mark.parametrize("name", ["an4", "mini_librispeech", "librispeech", "switchboard"])
def test_results_are_told_or_it_is_said_that_there_are_none(name: str) -> None:
    results = (SCRIPTS / name / "RESULTS.md").read_text()
    assert load_recipe(name).name == name
    assert "%WER" in results or "not been run" in results
