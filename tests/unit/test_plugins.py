"""Commands and strategies of other packages: found by their entry points, and none harms what is not its own."""

import re
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.algorithms.codecs import codec_named
from roundelay.cli import main
from roundelay.commands.plugins import OF_SPEECH, OF_THE_LABORATORY
from roundelay.core import plugins
from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.plugins import find_plugins
from roundelay.strategies import make_strategy
from roundelay.strategies.bsp import Bsp
from roundelay.testing import LAWS, check_segments, laws
from roundelay_speech.api.recipes import load_recipe
from roundelay_speech.api.training import make_logger
from roundelay_speech.prepared import load_corpus
from roundelay_speech.recipes.known import check_recipe, recipe_options
from roundelay_speech.recipes.recipe import Recipe
from support.corpora import recorded
from support.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
MODULE = """
def add(command):
    sub = command("greet", greet, "say a greeting", ("roundelay greet you",))
    sub.add_argument("whom", help="the one who is greeted")

def greet(options):
    print("good day,", options.whom)
    return 3
"""


def install(folder: Path, entry: str, module: str = MODULE, package: str = "greeting", group: str = "commands") -> None:
    """Leave a package with one entry point in a folder, as an installer does."""
    (folder / f"{package}.py").write_text(module)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[roundelay.{group}]\n{entry}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _forget_modules() -> None:
    for name in ("greeting", "farewell", "doubling_sgd", "mine", "other_parts"):
        sys.modules.pop(name, None)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_package_brings_a_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(folder, "greet = greeting:add")
    assert main(["greet", "you"]) == 3
    assert capsys.readouterr().out == "good day, you\n"
    assert main(["help"]) == 0
    assert "say a greeting" in capsys.readouterr().out
    assert main(["help", "greet"]) == 0
    assert "roundelay greet you" in capsys.readouterr().out
    assert main(["gret", "you"]) == 2
    assert "Did you mean greet?" in said(capsys)
    assert main(["greet", "you", "--loud"]) == 2
    assert "greet: there is no option --loud." in said(capsys)


def test_one_that_is_broken_is_named_and_harms_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(folder, "greet = greeting:add", "import a_module_that_is_not_there\n")
    assert main(["list", "codecs"]) == 0
    capsys.readouterr()
    assert main(["greet", "you"]) == 2
    assert said(capsys).endswith(
        "the command 'greet' of the package greeting cannot be loaded: No module named 'a_module_that_is_not_there'. "
        "Mend that package, or uninstall it."
    )


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("salute = greeting:add", "the entry point 'salute' of the package greeting adds greet"),
        ("launch = greeting:add", "the package greeting has a command 'launch', which Roundelay has itself"),
    ],
)
def test_a_name_is_that_of_one_command(
    entry: str, named: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(folder, entry)
    assert main(["help"]) == 2
    assert named in said(capsys)


def test_two_packages_with_one_command_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(folder, "greet = greeting:add")
    install(folder, "greet = farewell:add", package="farewell")
    assert main(["greet", "you"]) == 2
    assert "both have a command 'greet'" in (message := said(capsys))
    assert "farewell" in message
    assert "greeting" in message


@pytest.mark.parametrize("name", OF_THE_LABORATORY)
def test_without_the_laboratory_its_commands_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: ())
    assert main([name]) == 2
    assert said(capsys).endswith(
        f"`roundelay {name}` is a command of the laboratory, which is not installed: `pip install ./lab` in a clone of "
        "Roundelay."
    )
    assert main(["help"]) == 0


@pytest.mark.parametrize("name", OF_SPEECH)
def test_without_speech_its_commands_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: ())
    assert main([name]) == 2
    assert said(capsys).endswith(
        f"`roundelay {name}` is a command of the package roundelay-speech, which is not installed: "
        "pip install 'roundelay[speech]'."
    )


@pytest.mark.parametrize(
    ("package", "commands"), [("roundelay_speech", OF_SPEECH), ("roundelay_lab", OF_THE_LABORATORY)]
)
def test_the_packages_have_those(package: str, commands: tuple[str, ...]) -> None:
    ours = {found.name for found in find_plugins("commands").values() if found.value.startswith(f"{package}.")}
    assert ours == set(commands), "install them: pip install -e ./speech -e ./lab"


def test_one_function_adds_several_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = MODULE.replace("    sub.add", '    command("part", part, "say good-bye")\n    sub.add')
    module += "\ndef part(options):\n    print('good-bye')\n"
    install(folder, "greet = greeting:add\npart = greeting:add", module)
    assert main(["part"]) == 0
    assert main(["greet", "you"]) == 3
    assert capsys.readouterr().out == "good-bye\ngood day, you\n"


def test_the_list_of_commands_loads_no_torch() -> None:
    script = "import sys; from roundelay.cli import main; main(['help']); assert 'torch' not in sys.modules"
    run_python("-c", script)


def test_a_package_brings_a_strategy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the examples, by name: listed, checked, simulated, on processes, and held to the laws."""
    module = (EXAMPLE / "doubling_sgd.py").read_text()
    install(folder, "doubling = doubling_sgd:Doubling", module, "doubling_sgd", "strategies")
    assert main(["list", "strategies"]) == 0
    listed = capsys.readouterr().out
    assert "doubling: Periodic averaging whose period doubles.\n    period=2  local steps of the first block" in listed
    assert main(["simulate", "--learners", "3", "--rounds", "4", "--strategy", "doubling,perod=3"]) == 2
    assert "strategy doubling has no option perod: it has period, doublings. Did you mean period?" in said(capsys)
    assert main(["simulate", "--learners", "3", "--rounds", "4", "--strategy", "doubling,period=0"]) == 2
    assert "doubling.period is 0" in said(capsys)
    assert main(["simulate", "--learners", "3", "--rounds", "4", "--strategy", "doubling,period=3"]) == 0
    assert "doubling period 3 to 48" in capsys.readouterr().out
    strategy = make_strategy("doubling,doublings=1")
    for law in LAWS:
        law(strategy)


@pytest.mark.parametrize(
    ("entry", "module", "named"),
    [
        ("bsp = mine:Mine", "", "the package mine has a strategy 'bsp', which Roundelay has itself"),
        ("mine = mine:Mine", "import none_such", "the strategy 'mine' of the package mine cannot be loaded: No module"),
        ("mine = mine:Mine", "class Mine: ...", "must be a class derived from roundelay.strategies.base.Strategy"),
        ("mine = mine:Bsp", "from roundelay.strategies.bsp import Bsp", "whose `name` is 'mine'"),
    ],
)
def test_a_strategy_that_is_broken_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], entry: str, module: str, named: str
) -> None:
    install(folder, entry, module, "mine", "strategies")
    assert main(["simulate", "--learners", "2", "--rounds", "2", "--strategy", "mine"]) == 2
    assert named in said(capsys)
    assert main(["simulate", "--learners", "2", "--rounds", "2", "--strategy", "ssgd"]) == 0


CORPUS = """
from dataclasses import replace
from roundelay_speech.corpus.readers.fsdd import FSDD
MINE = replace(FSDD, name="mine", about="Mine.")
"""


def test_a_package_brings_a_corpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(folder, "mine = mine:MINE", CORPUS, "mine", "corpora")
    assert main(["list", "corpora"]) == 0
    assert "mine Mine. Free to load. Licence: Free Spoken" in " ".join(capsys.readouterr().out.split())
    for digit in (0, 7):
        for number in (0, 5, 10):
            recorded(folder, f"{digit}_theo_{number}")
    assert main(["prepare", "mine", "--source", str(folder), "--data", str(folder / "data"), "--quiet"]) == 0
    assert {split: len(some) for split, some in load_corpus(folder / "data").splits.items()} == dict.fromkeys(
        ("train", "dev", "test"), 2
    )
    capsys.readouterr()
    assert main(["prepare", "mina", "--source", str(folder)]) == 2
    assert "mine" in said(capsys)


def install_example(folder: Path) -> None:
    """Leave the package of the examples there, with all that it brings."""
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    for number, (group, parts) in enumerate(groups.items()):
        ((name, value),) = parts.items()
        module = value.partition(":")[0]
        metadata = folder / f"part{number}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: part{number}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        shutil.copy(EXAMPLE / f"{module}.py", folder)


def test_the_example_has_one_of_each_kind(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Listed, chosen by name beside our own, and doing its work; a slip is named as theirs."""
    install_example(folder)
    kinds = {"strategies": "doubling", "codecs": "truncated", "models": "linear", "objectives": "brier"}
    kinds |= {"loggers": "kinds", "corpora": "digits", "exports": "transcripts"}
    assert {*kinds, "commands"} == {*plugins.GROUPS}
    for kind, name in kinds.items():
        assert main(["list", kind]) == 0
        listed = capsys.readouterr().out
        assert re.search(rf"^{name}[: ]", listed, re.MULTILINE), listed
    assert main(["greet", "you"]) == 0
    assert main(["train", "an4", "--exp", str(tmp_path / "exp"), "--wire", "trunkated"]) == 2
    assert re.search("wire is 'trunkated': choose one of auto, fp32,.* Other packages bring truncated.", said(capsys))
    chosen = {"model": {"name": "linear", "context": 1}, "training.objective": "brier", "training.wire": "truncated"}
    recipe = load_recipe("an4", chosen)
    assert (type(recipe.model).__name__, type(recipe.training.objective).__name__) == ("LinearConfig", "Brier")
    assert recipe == build(Recipe, plain(recipe)), "as a run directory keeps it"
    assert "model.context=1" in " ".join(
        option.key + "=" + str(option.value) for option in recipe_options(plain(recipe))
    )
    with pytest.raises(UserError, match=r"unknown option model.contxt; did you mean context\?"):
        load_recipe("an4", {"model": {"name": "linear", "contxt": 1}})
    with pytest.raises(UserError, match="context is -1: give a whole number of 0 or more"):
        check_recipe("an4", ["model={name: linear, context: -1}"])
    vector, arrived = torch.randn(100_000, generator=torch.Generator().manual_seed(0)), torch.empty(100_000)
    codec = codec_named("truncated")
    codec.send(vector, None, arrived)
    assert ((arrived - vector).abs() <= codec.error * vector.abs()).all()
    once = arrived.clone()
    codec.send(arrived, None, once)
    assert torch.equal(once, arrived)
    for digit in (0, 7):
        for number in (0, 5, 10):
            recorded(folder, f"{digit}_theo_{number}")
    data = tmp_path / "data"
    assert main(["prepare", "digits", "--source", str(folder), "--data", str(data), "--quiet"]) == 0
    assert main(["export", "transcripts", str(data), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "dev.txt").read_text().split() == ["ZERO", "SEVEN"]
    assert type(make_logger("kinds")).__name__ == "Kinds"


@pytest.mark.parametrize(
    ("group", "entry", "module", "named"),
    [
        ("codecs", "mine = mine:Mine", "class Mine: ...", "a class derived from roundelay.core.codec.Codec, whose"),
        (
            "models",
            "mine = mine:Mine",
            "class Mine: ...",
            "derived from roundelay_speech.models.network.NetworkConfig",
        ),
        (
            "objectives",
            "mine = mine:Mine",
            "1 / 0",
            "of the package mine cannot be loaded: division by zero",
        ),
        ("loggers", "mine = mine:Mine", "Mine = 3", "is mine:Mine: it must be a function"),
        ("exports", "mine = mine:Mine", "", "has no attribute 'Mine'. Mend that package, or uninstall it."),
        ("models", "dnn = mine:Mine", "", "the package mine has a model 'dnn', which Roundelay has itself"),
    ],
)
def test_any_part_that_is_broken_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], group: str, entry: str, module: str, named: str
) -> None:
    install(folder, entry, module, "mine", group)
    assert main(["list", group]) == 2
    assert named in said(capsys)


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("bsp", {"alone_is_sgd": False}),
    "sum": ("bmuf,period=3", {"conserves": True}),
    "speed": ("adpsgd", {"synchronous": True}),
    "staleness": ("adpsgd", {"staleness_bound": 1}),
    "rows": ("bsp", {"rows": "own"}),
    "waits": ("bsp", {"waits": "none"}),
}
"""Declarations of a strategy that are not true, by the law that says so."""


@pytest.mark.parametrize("law", LIES)
def test_a_law_says_which_declaration_is_not_true(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, lie = LIES[law]
    made = make_strategy(strategy)
    monkeypatch.setattr(type(made), "traits", replace(made.traits, **lie))
    (check,) = (one for one in LAWS if one.__name__ == f"check_{law}")
    with pytest.raises(AssertionError, match=rf"^{next(iter(lie))} is "):
        check(made)


def test_a_law_says_that_a_block_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bsp, "block", 1)
    with pytest.raises(AssertionError, match="block is 1, and a segment that is cut at a multiple of it, round 6"):
        check_segments(make_strategy("bsp"))


def test_a_test_for_each_law_and_strategy() -> None:
    parametrized = {mark.args[0]: len(mark.args[1]) for mark in laws("bsp", "bmuf,period=3").pytestmark}  # type: ignore[attr-defined]
    assert parametrized == {"law": len(LAWS), "strategy": 2}
    with pytest.raises(UserError, match="there is no strategy 'bps'"):
        laws("bps")
