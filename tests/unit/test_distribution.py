"""Content of packages: the wheel has every file the package reads, the source distribution what a clone has."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution, made of a copy, so that nothing is left in the checkout."""
    pytest.importorskip("setuptools", reason="pip install setuptools")
    folder = tmp_path_factory.mktemp("packed")
    copy = folder / "copy"
    copy.mkdir()
    for name in ("src", "lab", "tests", "docs", "examples", "recipes", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT)
    for name in (
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "CITATION.cff",
        "Dockerfile",
        "mkdocs.yml",
    ):
        shutil.copy(ROOT / name, copy)
    build = f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r}); b.build_wheel({str(folder)!r})"
    for place in (copy, copy / "lab"):
        subprocess.run(
            [sys.executable, "-c", build], cwd=place, check=True, capture_output=True, text=True, timeout=100
        )
    return folder


@pytest.mark.parametrize(("package", "source"), [("roundelay", ROOT / "src"), ("roundelay_lab", ROOT / "lab" / "src")])
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


def test_the_source_distribution_has_what_a_clone_has(packed: Path) -> None:
    (archive,) = packed.glob("roundelay-*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "pyproject.toml",
        "CITATION.cff",
        "mkdocs.yml",
        "docs/scoring.md",
        "docs/site/hook.py",
        "docs/report.png",
        "docs/strategies/gossip.md",
        "examples/classifier.py",
        "recipes/an4/run.sh",
        "tests/conftest.py",
        "tests/unit/test_distribution.py",
        "tests/support/until.py",
        "benchmarks/talk.py",
        "speech/src/roundelay_speech/recipes/options/known.json",
        "src/roundelay/py.typed",
        "lab/pyproject.toml",
        "lab/src/roundelay_lab/claims/page.py",
    } <= inside
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
