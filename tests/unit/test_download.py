"""Downloads: whatever a server does, the file is right in the end, or the error names the address and what to do."""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay.core.progress import Silent
from roundelay.core.streams import stream
from roundelay_speech.corpus import download as module
from roundelay_speech.corpus.download import Remote, Wanted, extract, fetch
from roundelay_speech.corpus.readers import READERS
from roundelay_speech.corpus.readers.librispeech import DOWNLOADED_PARTS
from support.odd_server import Answer, OddServer, odd_server, ranged, refusing, stalled, truncated, whole
from support.said import Said


def wanted(corpus: str, parts: Sequence[str] = ()) -> Wanted:
    return READERS[corpus].wanted(parts)


DATA = stream(0, "download").bytes(300_000)
SHA = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
MD5 = f"md5:{hashlib.md5(DATA).hexdigest()}"


@pytest.fixture
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


def get(server: OddServer, folder: Path, digest: str | None = SHA, attempts: int = 3, stall: float = 30) -> Path:
    return fetch(Remote(server.url(), digest), folder, Silent(), attempts=attempts, stall_seconds=stall)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("digest", [SHA, MD5, None])
def test_a_good_server(server: OddServer, tmp_path: Path, digest: str | None) -> None:
    server.answers = [whole(DATA)]
    assert get(server, tmp_path, digest).read_bytes() == DATA
    assert left(tmp_path) == {"file.bin", "downloads.json"}
    assert json.loads((tmp_path / "downloads.json").read_text())["file.bin"]["digest"] == (digest or SHA)
    assert get(server, tmp_path, digest) == tmp_path / "file.bin"
    assert len(server.requests) == 1


BAD = b"?" + DATA[1:]
CUT, AGAIN = partial(truncated, DATA, 100_000), ranged(DATA, '"1"')
ANSWERS: dict[str, tuple[list[Answer], str | None, list[str | None]]] = {
    "broken off twice": ([CUT(ETag='"1"'), ranged(DATA, '"1"', at=50_000), AGAIN], SHA, [None, "100000", "150000"]),
    "the range is ignored": ([CUT(ETag='"1"'), whole(DATA, ETag='"1"')], SHA, [None, "100000"]),
    # If-Range brings the new file whole; the old beginning is not joined to the new end.
    "another version": ([truncated(BAD, 100_000, ETag='"old"'), ranged(DATA, '"new"')], None, [None, "100000"]),
    "a weak tag is no version": ([CUT(ETag='W/"1"'), AGAIN], None, [None, None]),
    "another range": ([CUT(ETag='"1"'), ranged(DATA, '"1"', claimed=1), whole(DATA)], SHA, [None, "100000", None]),
    "corrupted once": ([whole(BAD), whole(DATA)], SHA, [None, None]),
    # A bad beginning that was gone on with is thrown away as a whole.
    "corrupted in its first half": ([truncated(BAD, 100_000, ETag='"1"'), AGAIN], SHA, [None, "100000", None]),
    "errors that pass": ([refusing(503), refusing(429), whole(DATA)], SHA, [None, None, None]),
}
"""By what happens, the answers of a server, the published checksum, and where each request begins."""


@pytest.mark.parametrize("case", ANSWERS)
def test_what_goes_wrong_is_made_good(server: OddServer, tmp_path: Path, case: str) -> None:
    answers, digest, begins = ANSWERS[case]
    server.answers = [*answers]
    assert get(server, tmp_path, digest).read_bytes() == DATA
    assert [one.get("Range") for one in server.requests] == [at and f"bytes={at}-" for at in begins]
    if case == "broken off twice":
        assert [one.get("If-Range") for one in server.requests] == [None, '"1"', '"1"']


def test_a_second_call_goes_on_where_the_first_gave_up(server: OddServer, tmp_path: Path) -> None:
    server.answers = [truncated(DATA, 100_000, ETag='"1"'), refusing(503)]
    with pytest.raises(UserError, match=r"503.*3 attempts in a row.*100000 bytes are kept.*again later") as error:
        get(server, tmp_path)
    assert str(error.value).startswith(server.url())
    assert not (tmp_path / "file.bin").exists()
    server.answers = [ranged(DATA, '"1"')]
    assert get(server, tmp_path).read_bytes() == DATA
    assert server.requests[-1]["Range"] == "bytes=100000-"


def test_a_stall_is_a_broken_connection(server: OddServer, tmp_path: Path) -> None:
    server.answers = [stalled(server, DATA, 100_000, ETag='"1"'), ranged(DATA, '"1"')]
    assert get(server, tmp_path, stall=1.0, attempts=20).read_bytes() == DATA
    assert server.requests[1]["Range"] == "bytes=100000-"


def test_a_server_that_only_stalls_is_given_up(server: OddServer, tmp_path: Path) -> None:
    server.answers = [stalled(server, DATA, 0)]
    with pytest.raises(UserError, match=r"no data for 0\.1 s; 2 attempts in a row"):
        get(server, tmp_path, stall=0.1, attempts=2)


def test_bytes_of_an_unnamed_version_are_joined_only_under_a_checksum(server: OddServer, tmp_path: Path) -> None:
    server.answers = [truncated(DATA, 100_000), ranged(DATA, '"1"')]
    assert get(server, tmp_path / "known").read_bytes() == DATA
    assert server.requests[-1]["Range"] == "bytes=100000-"
    server.answers = [truncated(DATA, 100_000), ranged(DATA, '"1"')]
    assert get(server, tmp_path / "unknown", None).read_bytes() == DATA
    assert "Range" not in server.requests[-1]


def test_corrupted_always(server: OddServer, tmp_path: Path) -> None:
    server.answers = [whole(DATA[:-1] + b"?")]
    with pytest.raises(UserError, match=r"not the file it should be, twice \(found sha256:.*load it by hand") as error:
        get(server, tmp_path)
    assert str(error.value).startswith(server.url())
    assert SHA in str(error.value)
    assert not (tmp_path / "file.bin").exists()


def test_more_bytes_than_announced(server: OddServer, tmp_path: Path) -> None:
    """The part that is there already is longer than the file on the server."""
    server.answers = [truncated(DATA + b"more", len(DATA) + 4, ETag='"1"')]
    get(server, tmp_path, None)
    (tmp_path / "file.bin").rename(tmp_path / "file.bin.part")
    note = {"url": server.url(), "validator": '"1"', "size": 1}
    (tmp_path / "file.bin.part.json").write_text(json.dumps(note))
    (tmp_path / "downloads.json").unlink()
    server.answers = [ranged(DATA, '"1"')]
    assert get(server, tmp_path).read_bytes() == DATA


def test_killed_between_the_last_byte_and_the_renaming(server: OddServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(DATA)
    (tmp_path / "file.bin.part.json").write_text(json.dumps({"url": server.url(), "validator": '"1"', "size": 1}))
    server.answers = [ranged(DATA, '"1"')]
    assert get(server, tmp_path).read_bytes() == DATA
    assert len(server.requests) == 1


@pytest.mark.parametrize("note", ["", "[]", "{", json.dumps({"url": "http://elsewhere/file.bin", "validator": "1"})])
def test_a_part_of_something_else(server: OddServer, tmp_path: Path, note: str) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    (tmp_path / "file.bin.part.json").write_text(note)
    server.answers = [ranged(DATA, '"1"')]
    assert get(server, tmp_path).read_bytes() == DATA
    assert "Range" not in server.requests[0]


@pytest.mark.parametrize("status", [403, 404, 410, 501])
def test_a_refusal_is_final(server: OddServer, tmp_path: Path, status: int) -> None:
    server.answers = [refusing(status)]
    with pytest.raises(UserError, match=rf"{server.url()}: the server answers {status} .*--source"):
        get(server, tmp_path)
    assert len(server.requests) == 1


class Counted(Silent):
    """Adds up what a bar is told."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int | None, list[int]]] = []

    def start(self, what: str, total: int | None = None) -> None:
        self.bars.append((what, total, []))

    def advance(self, n: int = 1, note: str = "") -> None:
        self.bars[-1][2].append(n)


def test_a_bar_ends_at_its_end(server: OddServer, tmp_path: Path) -> None:
    """Also the bar of a download that is gone on with."""
    data = DATA * 20  # 6 MB
    server.answers = [truncated(data, 2_500_000, ETag='"1"'), ranged(data, '"1"')]
    bars = Counted()
    fetch(Remote(server.url(), f"md5:{hashlib.md5(data).hexdigest()}"), tmp_path, bars)
    first, second, checked = bars.bars
    assert first[:2] == second[:2] == ("downloading file.bin (MB)", 6)
    assert checked[:2] == ("checking file.bin (MB)", 6)
    assert [sum(bar[2]) for bar in bars.bars] == [2, 6, 6]


def test_a_web_page_is_not_the_file(server: OddServer, tmp_path: Path) -> None:
    server.answers = [whole(b"<html>Please log in", **{"Content-Type": "text/html; charset=utf-8"})]
    with pytest.raises(UserError, match=r"a web page comes from there.*load the file by hand"):
        get(server, tmp_path, None)
    assert not (tmp_path / "file.bin").exists()


def test_nobody_there(tmp_path: Path) -> None:
    with odd_server() as server:
        url = server.url()
    with pytest.raises(UserError, match=r"no connection .*2 attempts in a row"):
        fetch(Remote(url, SHA), tmp_path, Silent(), attempts=2)


def test_a_file_that_changed_here(server: OddServer, tmp_path: Path) -> None:
    server.answers = [whole(DATA)]
    get(server, tmp_path, None)
    (tmp_path / "file.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"not the file that http.*Delete it"):
        get(server, tmp_path, None)
    assert len(server.requests) == 1


def test_a_file_loaded_by_hand_is_checked_and_taken(server: OddServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(DATA)
    assert get(server, tmp_path).read_bytes() == DATA
    assert not server.requests


def test_two_at_once(server: OddServer, tmp_path: Path) -> None:
    with (
        module._part(tmp_path / "file.bin", Remote(server.url())),
        pytest.raises(UserError, match="another process is downloading it"),
    ):
        get(server, tmp_path)


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=6))
def test_any_sequence_of_truncations_ends_right(breaks: list[tuple[int, bool]]) -> None:
    data = DATA[:20_000]
    with odd_server() as server, tempfile.TemporaryDirectory() as folder:
        server.answers = [
            ranged(data, '"1"', at=size) if honours else truncated(data, size, ETag='"1"') for size, honours in breaks
        ] + [ranged(data, '"1"')]
        remote = Remote(server.url(), f"md5:{hashlib.md5(data).hexdigest()}")
        assert fetch(remote, Path(folder), Silent(), attempts=10).read_bytes() == data


# archives -------------------------------------------------------------------------------------------------------------


def archive(path: Path, *members: tarfile.TarInfo, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in members:
            tar.addfile(member)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_unpacking_joins_folders(tmp_path: Path) -> None:
    one, two = archive(tmp_path / "1.tar.gz", L__a__x="1", L__README="r"), archive(tmp_path / "2.tar.gz", L__b__y="2")
    for _ in range(2):
        for path in (one, two):
            extract(path, tmp_path, Silent())
    assert (tmp_path / "L/a/x").read_text() + (tmp_path / "L/b/y").read_text() == "12"
    assert left(tmp_path) == {"1.tar.gz", "2.tar.gz", "L", "downloads.json"}


def test_unpacked_once(tmp_path: Path) -> None:
    path = archive(tmp_path / "1.tar.gz", L__a="1")
    extract(path, tmp_path, Silent())
    (tmp_path / "L/a").write_text("mine")
    extract(path, tmp_path, Silent())
    assert (tmp_path / "L/a").read_text() == "mine"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (member("../outside"), "outside the folder"),
        (member("L/../../outside"), "outside the folder"),
        (member("/tmp/outside"), "outside the folder"),
        (member("L/link", tarfile.SYMTYPE, "../../outside"), "link or a device"),
        (member("L/link", tarfile.SYMTYPE, "a"), "link or a device"),
        (member("L/link", tarfile.LNKTYPE, "/etc/passwd"), "link or a device"),
        (member("L/pipe", tarfile.FIFOTYPE), "link or a device"),
        (member("L/device", tarfile.CHRTYPE), "link or a device"),
    ],
)
def test_no_member_leaves_the_folder(tmp_path: Path, bad: tarfile.TarInfo, why: str) -> None:
    (tmp_path / "in").mkdir()
    path = archive(tmp_path / "in" / "1.tar.gz", bad, L__a="1")
    with pytest.raises(UserError, match=why) as error:
        extract(path, tmp_path / "in", Silent())
    assert bad.name in str(error.value)
    assert left(tmp_path / "in") == {"1.tar.gz"}
    assert left(tmp_path) == {"in"}


@pytest.mark.parametrize("cut", [5, 40, 80])
def test_a_damaged_archive(tmp_path: Path, cut: int) -> None:
    path = archive(tmp_path / "1.tar.gz", L__a="1" * 1000)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"1\.tar\.gz: .*Delete it"):
        extract(path, tmp_path, Silent())
    assert left(tmp_path) == {"1.tar.gz"}


def test_what_is_wanted() -> None:
    found = wanted("librispeech")
    assert [remote.name for remote in found.archives] == [f"{part}.tar.gz" for part in DOWNLOADED_PARTS]
    assert all(remote.digest for remote in found.archives)
    assert [remote.url for remote in wanted("mini-librispeech", ["dev-clean-2"]).archives] == [
        "https://www.openslr.org/resources/31/dev-clean-2.tar.gz"
    ]
    with pytest.raises(UserError, match="there is no part train-clean-1000; choose from train-clean-100"):
        wanted("librispeech", ["train-clean-1000"])
    with pytest.raises(UserError, match="switchboard is not free"):
        wanted("switchboard")


def test_a_file_without_a_published_checksum_is_said_to_be_trusted(server: OddServer, tmp_path: Path) -> None:
    noted = Said()
    server.answers = [whole(DATA)]
    path = fetch(Remote(server.url()), tmp_path, noted)
    told = " ".join(noted.lines)
    assert "no checksum is published, and it came unencrypted (http)" in told
    assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in told
    again = Said()
    fetch(Remote(server.url()), tmp_path, again)
    assert "no checksum" not in " ".join(again.lines)


def test_what_is_loaded_comes_encrypted_or_is_said_not_to() -> None:
    for corpus in (name for name, reader in READERS.items() if reader.free is not None):
        found = wanted(corpus)
        for remote in (*found.archives, *([found.lexicon] if found.lexicon else [])):
            assert remote.url.startswith("https:") or corpus == "an4"
            assert "/master/" not in remote.url  # a branch moves
