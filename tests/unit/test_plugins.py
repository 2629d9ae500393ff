"""Commands of other packages: found by their entry points, and none harms what is not its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.commands import plugins
from roundelay.commands.plugins import OF_SPEECH, OF_THE_LABORATORY, find_plugins

MODULE = """
def add(command):
    sub = command("greet", greet, "say a greeting", ("roundelay greet you",))
    sub.add_argument("whom", help="the one who is greeted")

def greet(options):
    print("good day,", options.whom)
    return 3
"""


def install(folder: Path, entry: str, module: str = MODULE, package: str = "greeting") -> None:
    """Leave a package with one entry point in a folder, as an installer does."""
    (folder / f"{package}.py").write_text(module)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[roundelay.commands]\n{entry}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _forget_modules() -> None:
    for name in ("greeting", "farewell"):
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
        "the command 'greet' of the package greeting cannot be loaded: No module named 'a_module_that_is_not_there'."
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
    ours = {found.name for found in find_plugins() if found.value.startswith(f"{package}.")}
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
