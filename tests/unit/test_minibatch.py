"""Size of a minibatch: of a round or of every learner, in frames or sequences, in recipes and rates."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from roundelay.core.configure import build, plain
from roundelay.core.errors import UserError
from roundelay.core.minibatch import MinibatchSize, recorded_text
from roundelay.schedule import Anneal, start
from roundelay_speech.recipes.known import read_recipe
from roundelay_speech.recipes.recipe import Recipe, Training, complete, load_recipe


def test_a_round_by_hand() -> None:
    assert MinibatchSize(1000).frames(4, 5000, None) == 1000
    assert MinibatchSize(1000, per_learner=True).frames(4, 5000, None) == 4000
    # 500 sequences of 10 frames on average
    assert MinibatchSize(20, "sequences").frames(4, 5000, 500) == 200
    assert MinibatchSize(20, "sequences", per_learner=True).frames(4, 5000, 500) == 800
    assert MinibatchSize(4, "sequences").frames(4, 500, 1000) == 4, "at least a frame a learner"


@pytest.mark.parametrize(
    ("size", "sequences", "complaint"),
    [
        (MinibatchSize(5001), None, r"training\.minibatch is 5001 frames, but there are only 5000 training frames\."),
        (
            MinibatchSize(2000, per_learner=True),
            None,
            r"training\.minibatch_per_learner is 2000 frames for each of 4 learners, but there are only 5000",
        ),
        (
            MinibatchSize(501, "sequences"),
            500,
            "501 sequences, but there are only 5000 training frames in 500",
        ),
        (
            MinibatchSize(5, "sequences"),
            None,
            r"training\.minibatch_unit is sequences, but this model",
        ),
    ],
)
def test_what_cannot_be_cut_is_said_with_its_option(size: MinibatchSize, sequences: int | None, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        size.frames(4, 5000, sequences)


def test_examples_that_are_no_frames_are_called_by_their_name() -> None:
    complaint = r"training\.minibatch is 16 sequences, but there are only 4 training utterances\."
    with pytest.raises(UserError, match=complaint):
        MinibatchSize(16, "sequences").frames(1, 4, 4, "utterances")


def test_words() -> None:
    assert MinibatchSize(4096).text(4) == "4,096 frames a round (1,024 a learner)"
    assert MinibatchSize(256, "sequences", True).text(4) == "256 sequences a learner (1,024 a round)"


def test_a_recipe_says_one_of_two_and_the_command_line_takes_its_place(tmp_path: Path) -> None:
    assert Training().minibatch == 256, "neither"
    assert Training(minibatch_per_learner=64).size == MinibatchSize(64, "frames", per_learner=True)
    path = tmp_path / "recipe.yaml"
    given = {"name": "x", "corpus": "data", "alignment": "ali", "training": {"minibatch": 4096, "learners": 4}}
    path.write_text(yaml.safe_dump(given))

    def size(*overrides: str) -> MinibatchSize:
        return load_recipe(str(path), overrides).training.size

    assert size() == MinibatchSize(4096)
    assert size("training.minibatch_per_learner=1024") == MinibatchSize(1024, per_learner=True)
    assert size("training.minibatch_unit=sequences") == MinibatchSize(4096, "sequences")
    given["training"] = {"minibatch_per_learner": 1024}
    path.write_text(yaml.safe_dump(given))
    assert size("training.minibatch=512") == MinibatchSize(512)
    assert size("training.minibatch=null") == MinibatchSize(1024, per_learner=True), "null takes nobody's place"
    assert "minibatch" not in read_recipe(str(path))["training"]
    with pytest.raises(UserError, match="give one of the two"):
        size("training.minibatch=512", "training.minibatch_per_learner=64")


def test_a_resolved_recipe_is_read_again_as_it_is_and_one_of_before_has_the_total() -> None:
    for training in ({"minibatch": 64}, {"minibatch_per_learner": 64}, {}):
        resolved = plain(build(Recipe, {"name": "x", "corpus": "d", "alignment": "a", "training": training}))
        assert complete(resolved) == resolved
    old = complete({"name": "x", "corpus": "d", "alignment": "a", "training": {"minibatch": 512}})["training"]
    assert (old["minibatch"], old["minibatch_per_learner"], old["minibatch_unit"]) == (512, None, "frames")


def test_a_rate_is_scaled_in_the_unit_and_convention_of_the_minibatch() -> None:
    schedule = Anneal(0.1, base_minibatch=256, warmup_epochs=10)
    total = Training(minibatch=2560, minibatch_unit="sequences", learners=16)
    each = Training(minibatch_per_learner=512, learners=16)
    assert start(schedule, total.size.number).learning_rate == pytest.approx(1.0)
    assert start(schedule, each.size.number).learning_rate == pytest.approx(0.2), "whatever the number of learners"
    assert schedule.warmup(total.size.number, 0, 100).factor(0) == pytest.approx(0.1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("frames", "sequences", "text"),
    [
        (512, None, "512 frames a round (256 a learner)"),
        (4800, 16, "16 sequences a round (8 a learner), 4,800 frames"),
        (16, 16, "16 sequences a round (8 a learner)"),  # utterances are the examples
    ],
)
def test_what_a_record_says_of_it(frames: int, sequences: int | None, text: str) -> None:
    record = SimpleNamespace(
        learners=2, minibatch_frames=frames, minibatch_per_learner=False, minibatch_sequences=sequences
    )
    assert recorded_text(record) == text
