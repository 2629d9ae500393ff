"""Packages for an index such as PyPI, whose pages know nothing of the repository: `make dist URL=https://.../roundelay`.

Links of the README become absolute, and the package says where its repository, pages and changes are. Nothing in the
checkout is touched: a copy of what git knows is built.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(!?)(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def absolute(markdown: str, url: str) -> str:
    """The text with links to files of the repository made absolute; pictures as they are, pages as they are shown."""

    def link(found: re.Match[str]) -> str:
        picture, shown, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        return f"{picture}{shown}({url}/{'raw' if picture else 'blob'}/main/{target})"

    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def with_urls(project: str, url: str) -> str:
    """The text of pyproject.toml with the addresses of the project."""
    urls = {"Repository": url, "Documentation": f"{url}/blob/main/docs/index.md", "Issues": f"{url}/issues"}
    urls["Changelog"] = f"{url}/blob/main/CHANGELOG.md"
    table = "[project.urls]\n" + "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return project.replace("[project.scripts]\n", f"{table}\n[project.scripts]\n", 1)


def build(url: str, out: Path) -> list[Path]:
    """Build the source distribution and the wheel into `out`; returns their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
            file = copy / name
            file.write_text(change(file.read_text(encoding="utf-8"), url), encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        made = f"import setuptools.build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
        for place in (copy, copy / "speech"):
            subprocess.run([sys.executable, "-c", made], cwd=place, check=True, stdout=subprocess.DEVNULL)
    return sorted(out.iterdir())


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("https://"):
        sys.exit("Say where the repository is: make dist URL=https://HOST/OWNER/roundelay")
    for path in build(sys.argv[1].rstrip("/"), ROOT / "dist"):
        print(path)
