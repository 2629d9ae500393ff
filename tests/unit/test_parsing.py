"""JSON and YAML that are none are an error of one kind, whatever the libraries raise for them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from roundelay.core.configure import override, read_yaml
from roundelay.core.errors import UserError
from roundelay.core.files import parse_json, parse_yaml
from roundelay.core.live import Live, read_live
from roundelay.core.records import EVENTS, read_events
from roundelay.core.strategy_text import parse_strategy
from roundelay.run_directory import cut
from roundelay.runtime.trace import Recorder, read_entries
from roundelay_speech.hmm.boundaries import read_phone_times
from roundelay_speech.recipes.recipe import kept_recipe

DEEP = "[" * 100_000
LONG = "9" * 5000
"""More digits than Python turns into a number."""
BOTH = ("", "{", DEEP, '{"a": ' * 50_000)
JSON = (*BOTH, LONG, f'{{"kind": {LONG}}}', f'{{"what": {LONG}}}')
YAML = (*BOTH[1:], "a: 2026-99-99", "a: !!timestamp x", "a: !!int ''", "a: !!float x", "? [a]\n: b", "\0", "a: *b")


@pytest.mark.parametrize("text", JSON, ids=range(len(JSON)))
def test_json(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the parser's own words)
        parse_json(text)


@pytest.mark.parametrize("text", YAML, ids=range(len(YAML)))
def test_yaml(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the parser's own words)
        parse_yaml(text)


def read_record(path: Path) -> object:
    return read_events(path)


def read_present(path: Path) -> object:
    return read_live(path.rename(path.with_name(Live.FILE)).parent)


def read_trace(path: Path) -> object:
    return list(read_entries(path.rename(path.with_name(Recorder.FILE)).parent))


def read_times(path: Path) -> object:
    return list(read_phone_times(path))


@pytest.mark.parametrize("text", [DEEP, f'{{"kind": {LONG}, "what": {LONG}}}'], ids=["deep", "long"])
@pytest.mark.parametrize("reader", [read_record, read_present, read_trace, read_times])
def test_readers_of_json_name_the_file(reader: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(f"{text}\n{{}}\n")
    with pytest.raises(UserError, match=str(tmp_path)):
        reader(path)


@pytest.mark.parametrize("text", [DEEP, "a: !!timestamp x", "a: 2026-99-99"])
def test_readers_of_yaml_name_what_they_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml: not valid YAML"):
        read_yaml(path)
    value = text.removeprefix("a: ")
    with pytest.raises(UserError, match="override"):
        override({}, f"a={value}")
    with pytest.raises(UserError, match="is not a value"):
        parse_strategy(f"bmuf,period={value}")


def test_a_folder_in_a_recipes_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_yaml(tmp_path)


def test_a_damaged_line_of_the_log_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    """Everything after a checkpoint is cut off."""
    log = tmp_path / EVENTS
    log.write_text(f'{{"kind": "x"}}\n{DEEP}\n')
    cut(tmp_path, len('{"kind": "x"}\n'))
    assert log.read_text() == '{"kind": "x"}\n'


@pytest.mark.parametrize(
    "text", ["name: x\ncorpsu: data\n", "name: [1\n", "name: x\ncorpus: data\nmodel: {widht: 3}\n"]
)
def test_a_damaged_recipe_of_a_run_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=str(tmp_path / "recipe.yaml")):
        kept_recipe(tmp_path, ["decode.beam=9"])
