"""Files of scoring: written and read back, broken lines named, garbage refused, and what each file means."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import ErrorCounts, score
from roundelay_speech.scoring.alignment.groups import Group
from roundelay_speech.scoring.formats.ctm import TimedWord, UtterancePosition, read_ctm, write_ctm
from roundelay_speech.scoring.formats.glm import GlmRule, MappingRules, Purpose, read_glm
from roundelay_speech.scoring.formats.stm import StmSegment, cut_at_segments, read_stm, write_stm
from roundelay_speech.scoring.formats.trn import read_trn, write_trn
from roundelay_speech.scoring.normalise import Rules, case_of_times

GLM_HEADER = "* name = \"test\"\n* format = 'NIST1'\n* copy_no_hit = 'T'\n* case_sensitive = 'F'\n"
OWN = Path(__file__).parents[2] / "docs" / "example.glm"
VALID = {
    "trn": "A B { C / D } (s-1)\n;; x\nE- (F) (s-2)\n",
    "ctm": ";; x\nf A 0.5 0.25 WORD 0.9\nf A 1 2 W NA\n",
    "stm": ';; LABEL "x" "y"\nf A s 0 1 <o,x> (A) { B / @ } C-\nf A s 1 2 ignore_time_segment_in_scoring\n',
    "glm": ';; x\n* name = "x"\n[A B] => { C / D } / [ ] __ [ ]\n'
    ';; INPUT_DEPENDENT_APPLICATION = "ref"\n"x" => [] / a __\n',
}
TEXT = "A B (C) x { D / E }"
READERS: dict[str, Callable[[Path], object]] = {
    "trn": read_trn,
    "ctm": read_ctm,
    "stm": read_stm,
    "glm": lambda path: read_glm(path, "ref").apply(TEXT.split(), split_hyphens=True),
}
RARELY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

# All of them ----------------------------------------------------------------------------------------------------------

BROKEN = {
    "trn": ("", [("A B", "expected"), ("A (u)\nB (u)", "utterance u comes twice")]),
    "ctm": (
        "f 1 0 1 W\n",
        [
            ("f 1 0 1", "expected `file channel start duration word"),
            ("f 1 0 1 W 0.5 more", "expected `file channel start duration word"),
            ("f 1 x 1 W", "the start is 'x'"),
            ("f 1 0 -1 W", "the duration is '-1'"),
            ("f 1 nan 1 W", "the start is 'nan'"),
            ("f 1 0 inf W", "the duration is 'inf'"),
            ("f 1 0 1 W high", "the confidence is 'high'"),
            ("f 1 * * <ALT_BEGIN>", "the alternatives that begin here are not closed"),
            ("f 1 * * <ALT_BEGIN>\nf 2 0 1 W", "the alternatives that begin here are not closed"),
            ("f 1 * * <ALT>", "<ALT> stands where no alternatives can go on"),
            ("f 1 * * <alt_end>", "<alt_end> stands where no alternatives can end"),
            ("f A * * <ALT_BEGIN>\nf A * * <ALT_BEGIN>", "<ALT_BEGIN> stands where no alternatives can begin"),
            ("f A * * <ALT_BEGIN>\nf A * * <ALT_END>", "there is no word among these alternatives"),
        ],
    ),
    "stm": (
        "f A s 0 1 <o> W\n",
        [
            ("f A s 1", "expected `file channel speaker begin end"),
            ("f A s one 2 W", "the begin is 'one'"),
            ("f A s 1 inf W", "the end is 'inf'"),
            ("f A s 3 2 W", "the segment ends at 2.0 s, before it begins at 3.0 s"),
            ("f A s 1 2 <o,swb W", "the labels .* are not closed"),
            ("f A s 1 2 { W / V", "a '{' is not closed in"),
            ("f A s 1 2 W )", r"a '\)' closes nothing in"),
        ],
    ),
    "glm": (
        GLM_HEADER + "A => B\n",
        [
            ("A B", "expected `before => after"),
            ("[] => B", "there is nothing before `=>`"),
            ("A => B / [ ]", "has no slot"),
            ("* format = 'NIST2'", "format 'NIST2'"),
            ("* format", "expected a header"),
            ("* copy_no_hit = 'F'", "would delete every word"),
            ("* case_sensitive = 'perhaps'", "must be 'T' or 'F'"),
            (';; INPUT_DEPENDENT_APPLICATION = "lattice"', "names 'lattice'"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("kind", "before", "line", "message"),
    [(kind, before, *case) for kind, (before, cases) in BROKEN.items() for case in cases],
)
def test_a_broken_line_is_named(tmp_path: Path, kind: str, before: str, line: str, message: str) -> None:
    path = tmp_path / f"file.{kind}"
    path.write_text(f"{before}{line}\n")
    lines = {before.count("\n") + 1, f"{before}{line}".count("\n") + 1}
    with pytest.raises(UserError, match=rf"file\.{kind}:({'|'.join(map(str, lines))}): .*{message}"):
        READERS[kind](path)


NOT_WRITTEN = [
    *(
        (write_trn, {name: [text]}, f"file: {name[0]}.* would be read as something else")
        for name, text in (("u", "TWO WORDS"), ("u", ""), ("u v", "W"), ("u(2)", "W"), ("u", ";;"))
    ),
    *(
        (write_ctm, {"u": [TimedWord(*timed)]}, f"u: {message}")
        for timed, message in (
            (("TWO WORDS", 0, 1), "'TWO WORDS' must be one word"),
            (("", 0, 1), "'' must be one word"),
            (("<Alt>", 0, 1), "the word '<Alt>' would be read as the mark"),
            (("W", -1, 1), "W lasts 1 s from -1"),
            (("W", 0, float("nan")), "W lasts nan s"),
            (("W", 0, 1, 1.5), "the confidence of W is 1.5"),
        )
    ),
    *(
        (write_stm, [StmSegment("f", "A", *given)], message)
        for given, message in (
            (("two names", 0, 1, ()), "'two names' must be one word"),
            (("s", 0, 1, ("",)), "'' must be one word"),
            (("s", 2, 1, ()), "it ends at 1 s"),
            (("s", 0, float("nan"), ()), "it ends at nan s"),
            (("s", 0, 1, (), ("a,b",)), "the label 'a,b'"),
            (("s", 0, 1, ("<unk>",)), "'<unk>' would be read as labels"),
        )
    ),
]


@pytest.mark.parametrize(("write", "what", "message"), NOT_WRITTEN)
def test_what_cannot_be_read_is_not_written(
    tmp_path: Path, write: Callable[[Path, Any], None], what: object, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        write(tmp_path / "file", what)
    assert not (tmp_path / "file").exists()


@given(st.dictionaries(st.text(min_size=1), st.lists(st.text(), max_size=3), max_size=3))
def test_trn_that_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, list[str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.trn"
    try:
        write_trn(path, texts)
    except UserError:
        return
    assert read_trn(path) == texts


def names(but: str = "") -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters=but), min_size=1)


milliseconds = st.integers(0, 10**7).map(lambda n: n / 1000)
ctm_names = names().filter(
    lambda name: name.split() == [name] and name[:2] != ";;" and not re.fullmatch("<ALT(_BEGIN|_END)?>", name.upper())
)
confidences = st.none() | st.integers(0, 10**4).map(lambda n: n / 1e4)
timed = st.builds(TimedWord, ctm_names, milliseconds, milliseconds, confidences)


@RARELY
@given(st.dictionaries(ctm_names, st.lists(timed, min_size=1, max_size=5), max_size=3))
def test_ctm_that_is_written_is_read(tmp_path: Path, utterances: dict[str, list[TimedWord]]) -> None:
    """Utterances without a place are files of their own."""
    write_ctm(tmp_path / "hyp.ctm", utterances)
    expected = {(name, "1"): sorted(words, key=lambda word: word.start) for name, words in utterances.items()}
    assert read_ctm(tmp_path / "hyp.ctm") == expected


@st.composite
def some_segments(draw: st.DrawFn) -> StmSegment:
    start, end = sorted((draw(milliseconds), draw(milliseconds)))
    some = names(";<{}()/,>")
    texts = tuple(draw(st.lists(some, max_size=4))), tuple(draw(st.lists(names(",<>"), max_size=3)))
    return StmSegment(draw(some), draw(some), draw(some), start, end, *texts)


@RARELY
@given(st.lists(some_segments(), max_size=5))
def test_stm_that_is_written_is_read(tmp_path: Path, segments: list[StmSegment]) -> None:
    write_stm(tmp_path / "ref.stm", segments)
    assert read_stm(tmp_path / "ref.stm") == sorted(segments, key=lambda s: (s.file, s.channel, s.start, s.end))


# Garbage --------------------------------------------------------------------------------------------------------------

MARKS = "{ } ( ) / @ < > <o> [ ] => __ * ;; \0 -1 1e999 nan 0.5 ' \" A f = (s-1) <ALT> W;x \\; é (((("
FRAGMENTS = [*MARKS.split(" "), *"\n\r\t \u2028\x0c", "* format = 'NIST1'"]
FRAGMENTS += [f"\nf A * * <ALT{which}>\n" for which in ("_BEGIN", "", "_END")]


@st.composite
def damaged(draw: st.DrawFn, valid: str) -> bytes:
    """A valid file cut, doubled, sprinkled with marks and with bytes; or only marks."""
    text = draw(st.sampled_from([valid, "", valid * 2]))
    for _ in range(draw(st.integers(0, 4))):
        start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        text = text[:start] + "".join(draw(st.lists(st.sampled_from(FRAGMENTS), max_size=4))) + text[end:]
    content = text.encode()
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place:]
    return content


@pytest.mark.parametrize("kind", READERS)
@settings(RARELY, max_examples=300)
@given(st.data())
def test_garbage(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    read_or_name(kind, tmp_path, data.draw(damaged(VALID[kind])))


@settings(RARELY, max_examples=200)
@given(st.data(), st.booleans(), st.sampled_from(["error", "empty"]))
def test_a_score_or_an_error(
    tmp_path: Path, data: st.DataObject, sclite: bool, missing: Literal["error", "empty"]
) -> None:
    """Damaged files through mapping, cutting and alignment: counts that fit together, or an error of the user's."""
    paths = {kind: tmp_path / f"file.{kind}" for kind in ("stm", "ctm", "glm")}
    for kind, path in paths.items():
        path.write_bytes(data.draw(damaged(VALID[kind])))
    try:
        case = case_of_times(paths["stm"], paths["ctm"], missing)
        result = case.score(Rules(glm=paths["glm"], sclite_costs=sclite, missing=missing))
    except UserError:
        return
    for utterance in result.utterances:
        errors, pairs = utterance.errors, utterance.pairs
        assert min(errors.ins, errors.del_, errors.sub, errors.correct) >= 0
        assert errors.ref == sum(ref is not None for ref, _ in pairs)
        assert errors.total == len(utterance.wrong)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n" * 10, b"(" * 4000, b"{ " * 100_000, b"f A s 0 1 " + b"{ a / " * 5000, b"[" * 4000 + b"=>" * 4000],
)
def test_much_of_the_same(kind: str, content: bytes, tmp_path: Path) -> None:
    read_or_name(kind, tmp_path, content)


def read_or_name(kind: str, folder: Path, content: bytes) -> None:
    path = folder / f"file.{kind}"
    path.write_bytes(content)
    said = f"{path}:1: "
    try:
        READERS[kind](path)
    except UserError as error:
        said = str(error)
    assert re.match(rf"{re.escape(str(path))}(:\d+: |: not UTF-8 text \(byte \d+)", said), said


@pytest.mark.parametrize("kind", READERS)
def test_valid_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"file.{kind}"
    path.write_text(VALID[kind])
    assert READERS[kind](path)
    with pytest.raises(UserError, match="no such file"):
        READERS[kind](tmp_path / "missing")
    with pytest.raises(UserError, match="not a file but a folder"):
        READERS[kind](tmp_path)


# Words with times -----------------------------------------------------------------------------------------------------


def test_words_are_sorted_by_file_channel_and_time(tmp_path: Path) -> None:
    write_ctm(
        tmp_path / "hyp.ctm",
        {"u2": [TimedWord("LATER", 0.5, 0.25, 0.75)], "u1": [TimedWord("SOONER", 0.0, 0.1)]},
        {"u2": UtterancePosition("sw1", "A", 10.0), "u1": UtterancePosition("sw1", "A", 2.0)},
    )
    assert (tmp_path / "hyp.ctm").read_text() == "sw1 A 2.000 0.100 SOONER\nsw1 A 10.500 0.250 LATER 0.7500\n"


def test_comments_blank_lines_and_missing_confidences(tmp_path: Path) -> None:
    (tmp_path / "hyp.ctm").write_text(";; a comment\n\nf 1 0 1 WORD NA\r\nf 1 1 1 ;;WORD 0.5\n")
    assert read_ctm(tmp_path / "hyp.ctm") == {("f", "1"): [TimedWord("WORD", 0, 1), TimedWord(";;WORD", 1, 1, 0.5)]}


def test_alternatives(tmp_path: Path) -> None:
    """One word with marks, when the word with the latest midpoint is said; an empty alternative is no word."""
    path = tmp_path / "hyp.ctm"
    lines = ["1 0.2 SO 0.5", "* * <ALT_BEGIN>", "2 0.2 HE 0.5", "2.2 0.2 IS", "* * <ALT>", "2 0.3 HE'S", "* * <alt>"]
    path.write_text("".join(f"f A {line}\n" for line in [*lines, "* * <ALT_END>", "1.5 0.2 LATE"]))
    assert read_ctm(path) == {
        ("f", "A"): [
            TimedWord("SO", 1, 0.2, 0.5),
            TimedWord("LATE", 1.5, 0.2),
            TimedWord("{ HE IS / HE'S / @ }", 2.2, 0.2),
        ]
    }


def test_a_file_as_one_writes_it(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(
        ';; LABEL "swb" "Switchboard" ""\n'
        "sw1 A anna 0.5 2.25 <O,Swb,F> (%HESITATION) { HE IS / HE'S } here\n"
        "\n"
        "sw1 A anna 2.25 3 IGNORE_TIME_SEGMENT_IN_SCORING\n"
        "sw1 A inter_segment_gap 3 4\n"
    )
    first, second, third = read_stm(tmp_path / "ref.stm")
    words = ("(%HESITATION)", "{", "HE", "IS", "/", "HE'S", "}", "here")
    assert first == StmSegment("sw1", "A", "anna", 0.5, 2.25, words, ("O", "Swb", "F"))
    assert first.subset == "Swb"
    assert not first.ignored
    assert second.ignored
    assert second.subset is None
    assert third.words == ()


def test_words_belong_where_their_midpoint_is() -> None:
    """The first segment that ends after it; the last takes what comes after; ignored time swallows its words."""
    segments = [
        StmSegment("f", "A", "anna", 1.0, 2.0, ("A",)),
        StmSegment("f", "A", "bert", 3.0, 5.0, ("B",)),
        StmSegment("f", "A", "x", 6.0, 6.5, ("ignore_time_segment_in_scoring",)),
        StmSegment("f", "A", "x", 6.5, 7.0, ("IGNORETIMESEGMENTINSCORING",)),
        StmSegment("f", "A", "anna", 8.0, 10.0, ("C",)),
    ]
    starts = {"before": 0.1, "edge2": 1.9, "gap": 2.3, "edge5": 4.9, "edge7": 6.9, "gap7": 7.3, "edge10": 9.9}
    cut = cut_at_segments(segments, {("f", "A"): [TimedWord(word, start, 0.2) for word, start in starts.items()]})
    assert cut.hyps == {
        "anna-f-A-0001": ["before"],
        "bert-f-A-0002": ["edge2", "gap"],
        "anna-f-A-0005": ["edge7", "gap7", "edge10"],
    }
    assert cut.refs == {"anna-f-A-0001": ["A"], "bert-f-A-0002": ["B"], "anna-f-A-0005": ["C"]}


def test_nothing_is_lost_unless_it_is_ignored() -> None:
    segments = [StmSegment("f", "A", "s", t, t + 2, ("W",)) for t in range(0, 20, 2)]
    words = [TimedWord(f"W{n}", n / 7, 0.1) for n in range(200)]
    cut = cut_at_segments(segments, {("f", "A"): words})
    assert [w for name in cut.refs for w in cut.hyps[name]] == [w.word for w in words]


def test_channels_must_fit() -> None:
    segments = [StmSegment("f", "A", "s", 0, 1, ("W",)), StmSegment("f", "B", "t", 0, 1, ())]
    word = TimedWord("W", 0, 1)
    with pytest.raises(UserError, match="without a segment in the reference: f C"):
        cut_at_segments(segments, {("f", "A"): [word], ("f", "C"): [word]})
    with pytest.raises(UserError, match="1 of 1 channels with speech have no recognised word: f A"):
        cut_at_segments(segments, {})
    assert cut_at_segments(segments, {}, silent=True).hyps == {"s-f-A-0001": [], "t-f-B-0001": []}
    assert cut_at_segments(segments, {("f", "A"): [word]}).hyps["t-f-B-0001"] == []


def test_from_two_files_to_a_score(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(
        "f A anna 0 2 <o,swb> a b c\nf A gap 2 3 <o> \nf A inter_segment_gap 3 4 <o>\nf A bert 4 6 <o,ch> (uh) d\n"
    )
    (tmp_path / "hyp.ctm").write_text("f A 0.1 0.1 a\nf A 0.3 0.1 x\nf A 2.5 0.1 y\nf A 4.5 0.1 d\n")
    case = case_of_times(tmp_path / "ref.stm", tmp_path / "hyp.ctm")
    assert set(case.refs) == {"anna-f-A-0001", "gap-f-A-0002", "bert-f-A-0004"}
    assert case.groups["anna-f-A-0001"] == Group("anna", "swb")
    assert case.score(Rules()).errors == ErrorCounts(1, 1, 1, 5)


# Mapping rules --------------------------------------------------------------------------------------------------------


def rules(tmp_path: Path, lines: str, purpose: Purpose = "ref") -> MappingRules:
    (tmp_path / "rules.glm").write_text(GLM_HEADER + lines)
    return read_glm(tmp_path / "rules.glm", purpose)


@pytest.mark.parametrize(
    ("lines", "text", "expected"),
    [
        ("um => %hesitation / [ ] __ [ ]", "um a um um umbrella", "%HESITATION A %HESITATION %HESITATION UMBRELLA"),
        ("[ALL RIGHT] => [ALRIGHT] / [ ] __ [ ]", "all right then", "ALRIGHT THEN"),
        ("HE'S => { HE IS / HE HAS } / [ ] __ [ ]", "he's in", "{ HE IS / HE HAS } IN"),
        ("HE'S => { HE IS / HE HAS }", "he's in", "{ HE IS / HE HAS } IN"),
        ("ING => IN / __ [ ]", "going ingot", "GOIN INGOT"),
        ("[%hesitation] => [(%hesitation)] / [ ] __ [ ]", "%hesitation a (%hesitation)", None),
        ("ALL => X / [ ] __ [ ]\nALL RIGHT => Y / [ ] __ [ ]", "all right", "X RIGHT"),
        ("ALL RIGHT => Y / [ ] __ [ ]\nALL => X / [ ] __ [ ]", "all right all", "Y X"),
        ("A => B / [ ] __ [ ]\nB => C / [ ] __ [ ]", "a b", "B C"),
        ("A => B / [ ] __ [ ]\nC => D / [A ] __ [ ]", "a c", "B D"),
        ("A => B / [ ] __ [ ]\nC => D / [B ] __ [ ]", "a c", "B C"),
        ("[UM ] =>\nA => B", "um a", "B"),
        ('"UM" => "" / [ ] __ [ ]  ;; a comment', "um a", "A"),
        ("[[NOISE]] => [] / [ ] __ [ ]", "[noise] a", "A"),
        ("[AND/OR] => [OR] / [ ] __ [ ]", "and/or", "OR"),
        ("X => 1\nA => 2 / [ ] __\nA => 3", "xa a", "13 2"),
        ("A => 3\nA => 2 / [ ] __", "xa a", "X3 3"),
        ("", "Straße ß", "STRASSE SS"),
        ("ß => X / [ ] __ [ ]", "straße ß", "STRASSE X"),
    ],
)
def test_rules(tmp_path: Path, lines: str, text: str, expected: str | None) -> None:
    expected = "(%HESITATION) A ((%HESITATION))" if expected is None else expected
    assert " ".join(rules(tmp_path, lines).apply(text.split())) == expected


strings = st.text("ab ", max_size=3)
random_rules = st.lists(st.builds(GlmRule, strings.filter(bool), st.sampled_from("123"), strings, strings), max_size=8)


@given(random_rules, st.text("ab ", max_size=12))
def test_the_first_rule_that_fits_is_used(some: list[GlmRule], text: str) -> None:
    """Against the definition: every rule tried in turn at every place."""
    expected, place = "", 0
    while place < len(text):
        for rule in some:
            if text[:place].endswith(rule.left) and text[place:].startswith(rule.before + rule.right):
                expected, place = expected + rule.after, place + len(rule.before)
                break
        else:
            expected, place = expected + text[place], place + 1
    assert MappingRules(tuple(some), case_sensitive=True).rewrite(text) == expected


def test_optional_words_meet_rules_without_their_brackets(tmp_path: Path) -> None:
    found = rules(tmp_path, "UM => %HESITATION / [ ] __ [ ]\nWE'LL => WE WILL / [ ] __ [ ]")
    assert " ".join(found.apply(["(um)", "(we'll)", "go"])) == "(%HESITATION) (WE WILL) GO"


def test_hyphens_split_words_but_not_fragments(tmp_path: Path) -> None:
    split = rules(tmp_path, "").apply(["well-known", "(uh-huh)", "so-", "-ing", "a-b-c", "-"], split_hyphens=True)
    assert " ".join(split) == "WELL KNOWN (UH HUH) SO- -ING A B C -"


def test_case(tmp_path: Path) -> None:
    assert rules(tmp_path, "um => X").apply(["Um"]) == ["X"]
    assert rules(tmp_path, "* case_sensitive = 'T'\num => X").apply(["Um", "um"]) == ["Um", "X"]


def test_sections_for_one_side(tmp_path: Path) -> None:
    lines = (
        'A => B\n;; INPUT_DEPENDENT_APPLICATION = "REF|stm"\nC => D\n;; INPUT_DEPENDENT_APPLICATION = "hyp"\nE => F\n'
    )
    assert rules(tmp_path, lines).rules == (GlmRule("A", "B"), GlmRule("C", "D"))
    assert rules(tmp_path, lines, "hyp").rules == (GlmRule("A", "B"), GlmRule("E", "F"))
    lines += ';; INPUT_DEPENDENT_APPLICATION = ".*"\nG => H\n'
    assert rules(tmp_path, lines).rules[-1] == rules(tmp_path, lines, "hyp").rules[-1] == GlmRule("G", "H")


def test_the_example_of_the_documentation() -> None:
    """Both sides through our own small file: what means the same is scored as the same."""
    ref_text = "um well- uh-huh he's gonna be all right mister o'neil (you know) b- because it's well-known"
    hyp_text = "well mm-hmm he is going to be alright mr. o'neil be because it is well known"
    refs, hyps = {"u": ref_text.split()}, {"u": hyp_text.split()}
    sides: dict[Purpose, dict[str, list[str]]] = {"ref": refs, "hyp": hyps}
    ref, hyp = (read_glm(OWN, side).apply_to_all(texts, split_hyphens=True) for side, texts in sides.items())
    assert score(ref, hyp, marked=True).errors.total == 0, score(ref, hyp, marked=True)
    assert score(refs, hyps).errors.total > 10
    assert score(ref, {"u": hyp["u"][:-1]}, marked=True).errors.del_ == 1
