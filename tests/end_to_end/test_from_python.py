"""`import roundelay`: the whole path from a script without the guard `__main__`, and what is loaded when."""

from pathlib import Path

import numpy as np
import pytest

import roundelay
from roundelay.core.records import Evaluation, Segment, of_kind
from support.preloaded import environment
from support.processes import run_python

SCRIPT = """
import roundelay

silent = roundelay.Silent()
two = roundelay.PrepareOptions(workers=2)
roundelay.prepare("kaldi", "data", source="source", lexicon="source/dict.txt", options=two, progress=silent)
assert roundelay.inspect("data", roundelay.InspectOptions(workers=1), progress=silent).usable
summary = roundelay.align("recipe.yaml", {"alignment": "from_python/alignment"}, progress=silent)
changes = {"training.strategy": "adpsgd", "training.learners": 2, "schedule.max_epochs": 2}
run = roundelay.train("recipe.yaml", "from_python/run", changes, progress=silent)
(test,) = roundelay.decode(run.folder, {"decode.splits": ["test"], "decode.scale": 0.2}, progress=silent)
assert roundelay.load_run("from_python/run").results.wer["test"].wer == test.score.errors.wer
exported = roundelay.export(run.folder, "from_python/exported", to="torch")
assert exported.difference <= 1e-4, exported
card = roundelay.pack(run.folder, "from_python/model", progress=silent)
assert card.word_errors["test"]["words"] == test.score.errors.ref, card
judged = dict(splits=["test"], workers=1, times=False, progress=silent)
(seen,) = roundelay.evaluate("from_python/model", "data", **judged)
assert seen.summary.score.errors.wer == test.score.errors.wer, seen
(heard,) = roundelay.transcribe("from_python/model", "source/wav/test0-000.wav", progress=silent)
assert not heard.problem, heard
assert {word.word for word in heard.transcripts[0].words} <= {"YES", "NO", "GO", "STAY"}, heard
model = roundelay.load_model("from_python/model")
first, *_, last = repr(model).splitlines()
assert "<model from_python/model: " in first and last.endswith("words wrong>") and len(repr(model)) < 300, model
assert model.transcribe("source/wav/test0-000.wav").text == heard.text
assert len(repr(heard)) < 100, heard
try:
    model.transcribe("nothere.wav").text
except roundelay.UserError as error:
    assert "nothere.wav" in str(error), error
else:
    raise AssertionError
print(roundelay.report("from_python/run", "from_python/page.html"))
"""


def test_a_script_without_guard_goes_from_recordings_to_a_page(inside: Path) -> None:
    (inside / "script.py").write_text(SCRIPT)
    done = run_python("script.py", env=environment())
    assert done.stdout.splitlines()[-1] == "from_python/page.html"
    run = roundelay.load_run("from_python/run")
    assert run.results is not None
    assert run.recipe["training"]["learners"] == 2
    train, dev = run.curves["train"], run.curves["dev"]
    assert train["frames"].tolist() == [one.frames for one in of_kind(run.events, Segment)]
    assert dev["cross_entropy"].tolist() == [one.cross_entropy for one in of_kind(run.events, Evaluation)]
    assert np.all(train["staleness"] >= 0)
    assert dev["cross_entropy"][-1] < dev["cross_entropy"][0]
    assert "% words wrong" in repr(run)


def test_import_loads_neither_torch_nor_numpy_and_reading_a_run_no_torch() -> None:
    lines = [
        "import roundelay, sys",
        "assert not {'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules)",
        "roundelay.load_run, roundelay.report",
        "assert 'torch' not in sys.modules",
    ]
    run_python("-c", "\n".join(lines))


def test_every_public_name_is_there_and_listed() -> None:
    assert dir(roundelay) == sorted(roundelay.__all__)
    assert all(getattr(roundelay, name) is not None for name in roundelay.__all__)


def test_reports_and_simulations_are_a_call(tmp_path: Path) -> None:
    with pytest.raises(roundelay.UserError, match="nothing"):
        roundelay.report(tmp_path / "nothing", tmp_path / "page.html")
    found = roundelay.simulate("ssgd", learners=2, rounds=3, stragglers=["1:2x"])
    assert [one.label for one in found] == ["ssgd"]


def test_overrides_of_a_wrong_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"write \['training.learners=2'\]"):
        roundelay.load_recipe("demo", "training.learners=2")
    with pytest.raises(roundelay.UserError, match="did you mean learners"):
        roundelay.load_recipe("demo", {"training.learner": 2})
    recipe = roundelay.load_recipe("demo", {"training.learners": 2, "decode.scales": [0.1, 0.2]})
    assert (recipe.training.learners, recipe.decode.scales) == (2, (0.1, 0.2))
    assert roundelay.load_recipe(recipe) is recipe
