"""Mapping rules: what each kind of line does, and that broken ones are named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.core.errors import UserError
from roundelay_speech.scoring.alignment.counts import score
from roundelay_speech.scoring.formats.glm import GlmRule, MappingRules, Purpose, read_glm

HEADER = "* name = \"test\"\n* format = 'NIST1'\n* copy_no_hit = 'T'\n* case_sensitive = 'F'\n"
OWN = Path(__file__).parents[2] / "docs" / "example.glm"


def rules(tmp_path: Path, lines: str, purpose: Purpose = "ref") -> MappingRules:
    (tmp_path / "rules.glm").write_text(HEADER + lines)
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


@pytest.mark.parametrize(
    ("line", "message"),
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
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"rules\.glm:6: .*{message}"):
        rules(tmp_path, f"A => B\n{line}\n")


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
