"""The patches of examples/third_party: each is whole, names what it is for, and fits there, where that is at hand."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "third_party"
CLONES = "THIRD_PARTY_CLONES"
"""Names a folder of clones, each called OWNER+NAME, in which the patches are tried."""
HEAD = re.compile(
    r"Repository: https://github\.com/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)\n"
    r"Commit: (?P<commit>[0-9a-f]{40})\n"
    r"Licence of the file: (?P<licence>\S+)\n\n"
    r"diff --git a/(?P<path>\S+) b/(?P=path)\n--- a/(?P=path)\n\+\+\+ b/(?P=path)\n"
)
HUNK = re.compile(r"@@ -\d+(?:,(?P<before>\d+))? \+\d+(?:,(?P<after>\d+))? @@.*")
CONTEXT = 1
"""Lines of others that stand around a change: enough for it to be found."""


@dataclass(frozen=True)
class Patch:
    """A change of one file of one commit."""

    owner: str
    name: str
    commit: str
    licence: str
    path: str
    lines: tuple[str, ...]  # hunks, as they stand there

    @classmethod
    def read(cls, file: Path) -> Self:
        """
        Raises:
            AssertionError: it does not say what it is for.
        """
        head = HEAD.match(text := file.read_text())
        assert head is not None, text[:500]
        return cls(**head.groupdict(), lines=tuple(text[head.end() :].splitlines()))

    def changed(self, sign: str) -> int:
        """Number of lines that are added (+) or taken away (-)."""
        return sum(line.startswith(sign) for line in self.lines)


PATCHES = sorted(FOLDER.glob("*.patch"))


@pytest.mark.parametrize("file", PATCHES, ids=lambda file: file.stem)
def test_a_patch_is_whole(file: Path) -> None:
    """Its hunks have the lines they say, and no more of others' code than is needed to find the place."""
    lines = list(Patch.read(file).lines)
    added = "\n".join(line[1:] for line in lines if line.startswith("+"))
    assert any(way in added for way in ("roundelay.attach(", "RoundelayCallback(", "RoundelayStrategy"))
    while lines:
        head = HUNK.fullmatch(lines.pop(0))
        assert head is not None
        before, after = int(head["before"] or 1), int(head["after"] or 1)
        unchanged = 0
        while before or after:
            line = lines.pop(0) or " "
            assert line[0] in " +-"
            before, after = before - (line[0] in " -"), after - (line[0] in " +")
            unchanged = unchanged + 1 if line[0] == " " else 0
            assert unchanged <= 2 * CONTEXT


def test_the_table_names_each_of_them() -> None:
    table = (FOLDER / "README.md").read_text()
    assert PATCHES
    for file in PATCHES:
        patch = Patch.read(file)
        (row,) = [line for line in table.splitlines() if line.startswith(f"| [`{file.name}`]({file.name}) |")]
        for fact in (f"{patch.owner}/{patch.name}", patch.commit[:7], patch.path, patch.licence):
            assert fact in row
        assert f"+{patch.changed('+')} -{patch.changed('-')}" in row


@pytest.mark.parametrize("file", PATCHES, ids=lambda file: file.stem)
def test_a_patch_fits_the_file_of_its_commit(file: Path, tmp_path: Path) -> None:
    patch = Patch.read(file)
    clones = os.environ.get(CLONES)
    if not clones:
        pytest.skip(f"{CLONES} names no folder of clones")
    clone = Path(clones) / f"{patch.owner}+{patch.name}"
    if not clone.exists():
        pytest.skip(f"there is no {clone}")
    show = ["git", "-C", str(clone), "show", f"{patch.commit}:{patch.path}"]
    there = tmp_path / patch.path
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(subprocess.run(show, check=True, capture_output=True).stdout)
    applied = ["git", "apply", str(file)]
    done = subprocess.run(applied, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compile(there.read_text(), str(there), "exec")
