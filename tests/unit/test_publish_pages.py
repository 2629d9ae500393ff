"""Links of the README lead somewhere on the page of a package index too."""

import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from support.scripts import load_script

ROOT = Path(__file__).parents[2]
URL = "https://example.org/someone/roundelay"


@pytest.fixture(scope="module")
def publish() -> ModuleType:
    return load_script("docs/site/publish.py")


def test_every_link_of_the_readme_becomes_absolute_and_names_a_file(publish: ModuleType) -> None:
    text = publish.absolute((ROOT / "README.md").read_text(encoding="utf-8"), URL)
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = [target.removeprefix(URL) for target in targets if target.startswith(URL)]
    assert all((ROOT / re.sub("^/(blob|raw)/main/", "", one).partition("#")[0]).exists() for one in ours)
    assert f"{URL}/raw/main/docs/report.png" in targets


def test_links_of_others_and_code_stay(publish: ModuleType) -> None:
    text = "[a](https://b.c) [d](#e)\n```\n[f](g)\n```\n"
    assert publish.absolute(text, URL) == text


def test_addresses_are_metadata(publish: ModuleType) -> None:
    project = tomllib.loads(publish.with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), URL))["project"]
    assert project["urls"]["Repository"] == URL
    assert project["scripts"] == {"roundelay": "roundelay.cli:main"}


def test_every_python_that_is_promised_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert set(jobs["tests"]["strategy"]["matrix"]["python"]) == promised
    (torch,) = (d for d in project["dependencies"] if d.startswith("torch"))
    assert jobs["tests"]["strategy"]["matrix"]["torch"][0] == f"{torch.removeprefix('torch>=')}.*"


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
