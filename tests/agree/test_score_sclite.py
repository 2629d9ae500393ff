"""Word errors agree with sclite (NIST's SCTK, Debian's package sctk) on thousands of random pairs and files.

sclite aligns by its own costs, and breaks ties its own way. So what must be equal is the cost of the alignment under
those costs; and all counts, wherever sclite's total is the smallest possible.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from roundelay.core.streams import stream
from roundelay_speech.scoring.alignment.align import SCLITE
from roundelay_speech.scoring.alignment.counts import ErrorCounts, Score, score
from roundelay_speech.scoring.alignment.groups import by_speaker, sclite_table
from roundelay_speech.scoring.formats.ctm import TimedWord, UtterancePosition, write_ctm
from roundelay_speech.scoring.formats.glm import Purpose, read_glm
from roundelay_speech.scoring.formats.stm import StmSegment, write_stm
from roundelay_speech.scoring.formats.trn import read_trn, write_trn
from roundelay_speech.scoring.normalise import Rules, case_of_times
from roundelay_speech.scoring.resample import matched_pairs

FOLDER = Path("/usr/lib/sctk/bin")
GLM = Path(__file__).parents[2] / "docs" / "example.glm"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(FOLDER))
    if found is None:
        pytest.skip(f"{name} is not here: apt-get install sctk")
    return found


def sclite(*options: str) -> str:
    return subprocess.run([program("sclite"), *options], capture_output=True, text=True, check=True).stdout


def counts_in(output: str) -> dict[str, ErrorCounts]:
    """Counts by utterance, in lower case as sclite writes names."""
    found = re.findall(r"id: \((\S+)\)\n(?:.*\n)*?Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", output)
    return {
        name: ErrorCounts(ins=int(i), del_=int(d), sub=int(s), ref=int(c) + int(s) + int(d))
        for name, c, s, d, i in found
    }


def cost(counts: ErrorCounts) -> int:
    return 3 * (counts.ins + counts.del_) + 4 * counts.sub


def words(rng: np.random.Generator, most: int) -> list[str]:
    return [f"w{n}" for n in rng.integers(0, int(rng.integers(2, 12)), rng.integers(0, most))]


def corrupted(rng: np.random.Generator, ref: Sequence[str]) -> list[str]:
    if rng.random() < 0.3:
        return words(rng, 15)
    hyp = []
    for word in ref:
        kind = rng.integers(0, 10)
        if kind != 0:
            hyp.append(word if kind > 2 else f"w{rng.integers(0, 12)}")
        if kind == 1:
            hyp.append(f"w{rng.integers(0, 12)}")
    return hyp


Pairs = tuple[dict[str, list[str]], dict[str, list[str]]]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    rng = stream(0, "sclite")
    refs = {f"s{n % 7}-u{n}": words(rng, 15) for n in range(3000)}
    return refs, {name: corrupted(rng, ref) for name, ref in refs.items()}


def by_sclite(folder: Path, pairs: Pairs, *options: str) -> str:
    write_trn(folder / "ref.trn", pairs[0])
    write_trn(folder / "hyp.trn", pairs[1])
    files = ["-r", str(folder / "ref.trn"), "trn", "-h", str(folder / "hyp.trn"), "trn"]
    return sclite("-i", "spu_id", *files, *options)


def test_three_thousand_pairs(tmp_path: Path, pairs: Pairs) -> None:
    theirs = counts_in(by_sclite(tmp_path, pairs, "-s", "-o", "pralign", "stdout"))
    like_them = {u.id: u.errors for u in score(*pairs, costs=SCLITE).utterances}
    fewest = {u.id: u.errors for u in score(*pairs).utterances}
    assert len(theirs) == len(fewest) == 3000
    more = 0
    for name, counts in theirs.items():
        assert cost(counts) == cost(like_them[name]), (name, counts, like_them[name])
        assert fewest[name].total <= counts.total
        if fewest[name].total == counts.total:
            assert fewest[name] == counts, name
        else:
            more += 1
    assert more < 30, "sclite's total is seldom more than the smallest"


def test_the_table(tmp_path: Path, pairs: Pairs) -> None:
    """Cell by cell, on the utterances whose counts are unique."""
    theirs = counts_in(by_sclite(tmp_path, pairs, "-s", "-o", "pralign", "stdout"))
    unique = [u.id for u in score(*pairs).utterances if u.errors == theirs[u.id]]
    some = ({name: side[name] for name in unique} for side in pairs)
    chosen = next(some), next(some)
    result = score(*chosen)
    ours = table_cells(sclite_table(by_speaker(result, {}), result))
    assert table_cells(by_sclite(tmp_path, chosen, "-s", "-o", "sum", "stdout")) == ours
    assert len(ours) == 7 + 4


def table_cells(text: str) -> dict[str, list[float]]:
    rows = re.findall(r"^\s*\| *(\S+) *\| *([\d. |]+?) *\|\s*$", text, re.MULTILINE)
    return {name.lower(): [float(cell) for cell in cells.replace("|", " ").split()] for name, cells in rows}


@pytest.mark.parametrize("both", [False, True])
def test_marks(tmp_path: Path, both: bool) -> None:
    """Alternatives, optional words, fragments, `@` and attributes in references, and in hypotheses too: ours is never
    above sclite's total. With its costs, and plain hypotheses, all three counts are nearly always the same: of equal
    costs it takes these or those.
    """
    rng = stream(1, "sclite")
    refs, hyps = {}, {}
    for n in range(2000):
        ref = words(rng, 12)
        hyp = corrupted(rng, ref)
        refs[f"s{n % 7}-u{n}"] = [mark for word in ref for mark in marked(rng, word).split()]
        hyps[f"s{n % 7}-u{n}"] = [mark for word in hyp for mark in marked(rng, word).split()] if both else hyp
    output = by_sclite(tmp_path, (refs, hyps), "-s", "-F", "-D", "-o", "pralign", "stdout")
    theirs = counts_in(output)
    assert len(theirs) == 2000
    fewest, like_them = score(refs, hyps, marked=True), score(refs, hyps, marked=True, costs=SCLITE)
    assert all(u.errors.total <= theirs[u.id].total for u in fewest.utterances)
    assert all(u.errors.total <= theirs[u.id].total for u in like_them.utterances)
    other = [u for u in like_them.utterances if errors_of(u.errors) != errors_of(theirs[u.id])]
    assert len(other) < (120 if both else 15)


def errors_of(counts: ErrorCounts) -> tuple[int, int, int]:
    return counts.ins, counts.del_, counts.sub


def marked(rng: np.random.Generator, word: str) -> str:
    some = [
        f"({word})",
        f"{{ {word} / w0 w1 }}",
        f"{{ w2 / {word} / @ }}",
        f"{word[:1]}-",
        f"-{word[1:]}",
        f"({word}-)",
        "@",
        f"@ {word}",
        "-",
        f"{word};noun",
        rf"{word}\;s;x;y",
        f"({word});x",
        f"{word}*",
    ]
    return word if rng.random() < 0.4 else some[rng.integers(0, len(some))]


AWKWARD = r"""
so { he is / he's / he has } late | so he has late
so { he is / he's } late | so { she's / he is / @ } late
take { the / @ } { next / { very next / next one } / @ } exit | take very next exit
{ { a b / c } d / e } f | c d f
bro- the -ing lamp | brother walking lamp
brother walking lamp | bro- the -ing lamp
bro- -ther | b- -er
stay @ here | stay here
stay here | stay @ here @
@ | @
@ | well
(uh) go (uh) on | go on
(uh) go (uh) on | uh go on then
left (um) right | left a b c
left (um-) right | left umbrella right
left right | left { @ / um } right
{ @ / um } right | { @ / um } right
tree;noun;loud falls;verb | tree falls;noun
rock\;s;noun roll | rock\;s roll;;x
shout* * now | shout * now
wait ; no | wait no ;
(uh);x yes | yes
{ one;x / two } three | two;y three
""".strip().splitlines()


def test_awkward_utterances(tmp_path: Path) -> None:
    """One by one, with sclite's costs: the same three counts, also with the sides exchanged. And the same number of
    words in the reference, but for optional words of the hypothesis: sclite counts them as words of the reference.
    """
    sides = [line.split("|") for line in AWKWARD]
    for first, second in ((0, 1), (1, 0)):
        refs, hyps = ({f"s-u{n}": side[i].split() for n, side in enumerate(sides)} for i in (first, second))
        theirs = counts_in(by_sclite(tmp_path, (refs, hyps), "-s", "-F", "-D", "-o", "pralign", "stdout"))
        assert len(theirs) == len(AWKWARD)
        for u in score(refs, hyps, marked=True, costs=SCLITE).utterances:
            extra = sum(u.pairs[place][0] is None for place in u.forgiven)
            assert (*errors_of(u.errors), u.errors.ref + extra) == (*errors_of(theirs[u.id]), theirs[u.id].ref), u


def test_names_without_case(tmp_path: Path) -> None:
    """Utterances, files and channels that differ in case alone are the same ones."""
    write_trn(tmp_path / "ref.trn", {"Sp-A1": ["a", "b"], "sp-a2": ["c"]})
    write_trn(tmp_path / "hyp.trn", {"sp-a1": ["a", "x"], "SP-A2": ["c"]})
    ref, hyp = tmp_path / "ref.trn", tmp_path / "hyp.trn"
    theirs = counts_in(sclite("-i", "spu_id", "-r", str(ref), "-h", str(hyp), "-o", "pralign", "stdout"))
    ours = score(read_trn(ref), read_trn(hyp)).utterances
    assert {u.id.lower(): u.errors for u in ours} == theirs
    write_stm(tmp_path / "ref.stm", [StmSegment("Tape1", "A", "s", 0.0, 2.0, ("a", "b"))])
    write_ctm(
        tmp_path / "hyp.ctm",
        {"u": [TimedWord("a", 0.1, 0.2), TimedWord("b", 1.1, 0.2)]},
        {"u": UtterancePosition("tAPE1", "a")},
    )
    files = ["-r", str(tmp_path / "ref.stm"), "stm", "-h", str(tmp_path / "hyp.ctm"), "ctm"]
    theirs = counts_in(sclite(*files, "-o", "pralign", "stdout"))
    case = case_of_times(tmp_path / "ref.stm", tmp_path / "hyp.ctm")
    assert [u.errors for u in score(case.refs, case.hyps).utterances] == [*theirs.values()] == [ErrorCounts(ref=2)]


def test_times(tmp_path: Path) -> None:
    """Segments with gaps between them, ignored ones too, and words anywhere: counts of every segment."""
    rng = stream(2, "sclite")
    segments: list[StmSegment] = []
    spoken: dict[str, list[TimedWord]] = {}
    for file in (f"f{n}" for n in range(40)):
        now = 0.0
        for _ in range(12):
            start = round(now + float(rng.choice([0, 0, 0.5, 1.25])), 3)
            now = round(start + float(rng.integers(1, 5)), 3)
            said = ["ignore_time_segment_in_scoring"] if rng.random() < 0.1 else words(rng, 8)
            segments.append(StmSegment(file, "A", f"s{rng.integers(0, 5)}", start, now, tuple(said), ("o",)))
        starts = np.sort(rng.uniform(0, now + 2, 70)).round(2)
        spoken[file] = [TimedWord(f"w{rng.integers(0, 12)}", float(t), 0.11, 0.5) for t in starts]
    write_stm(tmp_path / "ref.stm", segments)
    write_ctm(tmp_path / "hyp.ctm", spoken, {file: UtterancePosition(file, "A") for file in spoken})
    files = ["-r", str(tmp_path / "ref.stm"), "stm", "-h", str(tmp_path / "hyp.ctm"), "ctm"]
    theirs = counts_in(sclite(*files, "-s", "-F", "-D", "-o", "pralign", "stdout"))
    case = case_of_times(tmp_path / "ref.stm", tmp_path / "hyp.ctm")
    ours = Score(tuple(score({n: case.refs[n]}, {n: case.hyps[n]}, costs=SCLITE).utterances[0] for n in case.refs))
    assert len(theirs) == len(ours.utterances)
    # sclite numbers a speaker's segments in the file's order, as the references here are.
    numbers: dict[str, int] = {}
    for utterance in ours.utterances:
        speaker = case.groups[utterance.id].speaker
        name = f"{speaker}-{numbers.get(speaker, 0):03d}"
        numbers[speaker] = numbers.get(speaker, 0) + 1
        assert cost(theirs[name]) == cost(utterance.errors), (name, utterance)


ALTERNATIVES = """
tape A 0.10 0.20 so
tape A * * <ALT_BEGIN>
tape A 0.40 0.20 he
tape A 2.00 0.20 is
tape A * * <ALT>
tape A 0.40 0.30 he's
tape A * * <ALT>
tape A * * <ALT_END>
tape A 2.50 0.20 late
tape A 3.10 0.20 again
tape A 4.50 0.20 and
"""


def test_alternatives_in_a_ctm(tmp_path: Path) -> None:
    """They go to the segment where the last of their words is; what is ignored may be written without underscores."""
    (tmp_path / "hyp.ctm").write_text(ALTERNATIVES.lstrip())
    write_stm(
        tmp_path / "ref.stm",
        [
            StmSegment("tape", "A", "s", 0.0, 2.0, ("so",)),
            StmSegment("tape", "A", "s", 2.0, 3.0, ("he", "is", "late")),
            StmSegment("tape", "A", "s", 3.0, 4.0, ("IGNORETIMESEGMENTINSCORING",)),
            StmSegment("tape", "A", "s", 4.0, 5.0, ("and",)),
        ],
    )
    files = ["-r", str(tmp_path / "ref.stm"), "stm", "-h", str(tmp_path / "hyp.ctm"), "ctm"]
    theirs = counts_in(sclite(*files, "-F", "-D", "-o", "pralign", "stdout"))
    ours = case_of_times(tmp_path / "ref.stm", tmp_path / "hyp.ctm").score(Rules(sclite_costs=True))
    assert [u.errors for u in ours.utterances] == [*theirs.values()] == [ErrorCounts(ref=n) for n in (1, 3, 1)]


def test_matched_pairs(tmp_path: Path) -> None:
    """Segments and z of two systems on 300 utterances; sc_stats cuts sclite's alignments, whose ties lie elsewhere."""
    rng = stream(4, "sclite")
    refs = {f"s{n % 5}-u{n}": [f"w{k}" for k in rng.integers(0, 500, rng.integers(5, 25))] for n in range(300)}
    systems = {
        name: {key: worse(rng, ref, rate) for key, ref in refs.items()} for name, rate in (("a", 0.1), ("b", 0.12))
    }
    write_trn(tmp_path / "ref.trn", refs)
    alignments = ""
    for name, hyps in systems.items():
        write_trn(tmp_path / f"{name}.trn", hyps)
        files = ["-r", str(tmp_path / "ref.trn"), "trn", "-h", str(tmp_path / f"{name}.trn"), "trn", name]
        sclite("-i", "spu_id", *files, "-o", "sgml", "-O", str(tmp_path), "-n", name)
        alignments += (tmp_path / f"{name}.sgml").read_text()
    command = [program("sc_stats"), "-p", "-t", "mapsswe", "-v", "-n", "-"]
    output = subprocess.run(command, input=alignments, capture_output=True, text=True, check=True).stdout
    found = re.search(r"MTCH_PR_RESULTS .*\(# segs: (\d+)\).*\(Z Stat: (\S+)\)", output)
    assert found is not None
    z, _, segments = matched_pairs(*(score(refs, hyps) for hyps in systems.values()))
    assert z is not None
    assert z < -1
    assert abs(segments - int(found[1])) <= 0.01 * segments
    assert z == pytest.approx(float(found[2]), abs=0.05)


def worse(rng: np.random.Generator, ref: Sequence[str], rate: float) -> list[str]:
    hyp = []
    for word in ref:
        chance = rng.random()
        hyp += [f"x{rng.integers(9)}"] if chance < rate else [] if chance < 1.5 * rate else [word]
        hyp += [f"y{rng.integers(9)}"] if rng.random() < rate / 3 else []
    return hyp


VOCABULARY = """um uh er umbrella all right alright he's she's it's i'm gonna ok mr. uh-huh mm-hmm
    well-known so- -ing a b (um) (you) (i'm-a) [laughter] %hesitation don't Can't"""


def test_mapping_rules(tmp_path: Path) -> None:
    """Our example file through SCTK's own filter, csrfilt.sh, and through ours: the same words."""
    rng = stream(3, "sclite")
    vocabulary = VOCABULARY.split()
    texts = {f"s-u{n}": [str(w) for w in rng.choice(vocabulary, rng.integers(0, 12))] for n in range(1000)}
    write_trn(tmp_path / "in.trn", texts)
    purposes: tuple[Purpose, ...] = ("ref", "hyp")
    for purpose in purposes:
        command = [program("csrfilt.sh"), "-dh", "-i", "trn", "-t", purpose, str(GLM)]
        path = {"PATH": f"{FOLDER}:/usr/bin:/bin"}
        with (tmp_path / "in.trn").open() as file:
            output = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True, env=path).stdout
        ours = read_glm(GLM, purpose).apply_to_all(texts, split_hyphens=True)
        theirs = {name: text.split() for text, name in re.findall(r"^(.*)\((s-u\d+)\)$", output, re.MULTILINE)}
        assert len(theirs) == 1000
        for name, some in ours.items():
            assert flat(some) == flat([word.upper() for word in theirs[name]]), (purpose, texts[name])


def flat(some: Sequence[str]) -> list[str]:
    """Each word of optional brackets in brackets of its own, as the filter leaves them."""
    found, inside = [], False
    for word in some:
        inside |= word.startswith("(")
        bare = word.strip("()")
        found += [f"({bare})" if inside else bare] if bare else []
        inside &= not word.endswith(")")
    return found
