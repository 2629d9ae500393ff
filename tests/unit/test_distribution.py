"""Content of packages: the wheel has every file the package reads, the source distribution what a clone has."""

import os
import shutil
import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.processes import run_python

ROOT = Path(__file__).parents[2]
ATOP = """
pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CONTRIBUTING.md Makefile CITATION.cff Dockerfile mkdocs.yml
"""
WITHIN = """
docs/scoring.md docs/site/hook.py docs/report.png docs/strategies/gossip.md examples/classifier.py recipes/an4/run.sh
tests/conftest.py tests/unit/test_distribution.py tests/support/until.py benchmarks/talk.py speech/pyproject.toml
speech/src/roundelay_speech/recipes/options/known.json src/roundelay/py.typed src/roundelay/options/known.json
lab/pyproject.toml lab/src/roundelay_lab/claims/page.py
"""
"""Files of a clone, at its top and below."""
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution, made of a copy, so that nothing is left in the checkout."""
    pytest.importorskip("setuptools", reason="pip install setuptools")
    folder = tmp_path_factory.mktemp("packed")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("src", "speech", "lab", "tests", "docs", "examples", "recipes", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
    for name in ATOP.split():
        shutil.copy(ROOT / name, copy)
    build = f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r}); b.build_wheel({str(folder)!r})"
    for place in (copy, copy / "speech", copy / "lab"):
        run_python("-c", build, where=place)
    return folder


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("roundelay", ROOT / "src"),
        ("roundelay_speech", ROOT / "speech" / "src"),
        ("roundelay_lab", ROOT / "lab" / "src"),
    ],
)
def test_the_wheel_has_what_the_package_reads(package: str, source: Path, packed: Path) -> None:
    (wheel,) = packed.glob(f"{package}-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {
        str(path.relative_to(source))
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= inside
    assert not [name for name in inside - files if not name.partition("/")[0].endswith(".dist-info")]


ALONE = """
import torch, roundelay
from roundelay.cli import main

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model(torch.ones(1, 3)).square().item()
session = roundelay.attach(model, optimizer, strategy="adpsgd")
for _ in range(8):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).square().mean().backward()
    optimizer.step()
session.close()
assert model(torch.ones(1, 3)).square().item() < before
print(roundelay.__file__)
commands = ["simulate", "--rounds", "5"], ["list", "strategies"], ["list", "models"], ["prepare", "demo"]
print(*map(main, commands))
"""
WITH_SPEECH = """
import roundelay
from roundelay.cli import main

print(main(["list", "models"]), main(["help", "prepare"]))
print(roundelay.load_recipe("an4").name, roundelay.train.__module__)
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all packages that are installed here, but for those of this repository."""
    folder = tmp_path_factory.mktemp("others")
    for place in {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}:
        for one in place.iterdir():
            if "roundelay" not in one.name and not (folder / one.name).exists():
                (folder / one.name).symlink_to(one)
    return folder


def run(script: str, wheels: list[Path], others: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script where these wheels are installed, and nothing else of this repository."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as whole:
            whole.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{others}"}
    return run_python("-S", "-c", script, where=tmp_path, env=environment)


def test_the_wheel_alone_trains_a_loop_and_names_what_speech_needs(packed: Path, others: Path, tmp_path: Path) -> None:
    done = run(ALONE, [*packed.glob("roundelay-*.whl")], others, tmp_path)
    assert f"{tmp_path}/roundelay/__init__.py\n" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 0 2 2"
    said = " ".join(done.stderr.split())
    assert "list models needs the package roundelay-speech: pip install 'roundelay[speech]'." in said
    assert "`roundelay prepare` is a command of the package roundelay-speech, which is not installed" in said


def test_the_wheel_of_speech_brings_its_commands_and_functions(packed: Path, others: Path, tmp_path: Path) -> None:
    done = run(WITH_SPEECH, [*packed.glob("roundelay-*.whl"), *packed.glob("roundelay_speech-*.whl")], others, tmp_path)
    assert done.stdout.splitlines()[-1] == "an4 roundelay_speech.api.training"


def test_the_source_distribution_has_what_a_clone_has(packed: Path) -> None:
    (archive,) = packed.glob("roundelay-*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert {*ATOP.split(), *WITHIN.split()} - {"Dockerfile", "MANIFEST.in"} <= inside
    assert not [name for name in inside if name.endswith(".pyc")]


def test_metadata(packed: Path) -> None:
    (wheel,) = packed.glob("roundelay-*.whl")
    with zipfile.ZipFile(wheel) as whole:
        (name,) = [name for name in whole.namelist() if name.endswith(".dist-info/METADATA")]
        text = whole.read(name).decode()
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Classifier: Programming Language :: Python :: {version}\n" in text
    assert "Author: The Roundelay authors\n" in text
    assert "Provides-Extra: completion\n" in text
