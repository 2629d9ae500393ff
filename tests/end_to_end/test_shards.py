"""`roundelay train` on two hosts that have different shards of one corpus, and on one host that has them all."""

import shutil
from pathlib import Path

import pytest

from roundelay.cli import main
from roundelay.core.files import read_json
from roundelay.core.records import Results, RunStarted, Segment, of_kind, read_events
from roundelay_speech.features.shards import SHARDS
from roundelay_speech.prepared import load_corpus
from support.started import ends, start, two_hosts

PREPARE = ["prepare", "kaldi", "--source", "source", "--lexicon", "source/dict.txt", "--data", "data", "--shards", "3"]
SHORT = ["schedule.max_epochs=1", "training.minibatch=64"]
HERE = ({0, 1}, {1, 2})
"""Shards of each host: one they both have, one each has alone."""


@pytest.fixture(scope="module")
def sharded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of this folder's tests in three shards."""
    there = tmp_path_factory.mktemp("shards") / "all"
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("exp*", "index"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(there)
        assert main(PREPARE) == 0
    return there


@pytest.fixture(scope="module")
def hosts(sharded: Path) -> tuple[Path, Path]:
    """Copies of it, each without some of the shards."""
    copies = []
    for host, here in enumerate(HERE):
        copies.append(shutil.copytree(sharded, sharded.with_name(f"host{host}")))
        features = copies[-1] / "data" / load_corpus(copies[-1] / "data").feature_folder
        for number in {0, 1, 2} - here:
            shutil.rmtree(features / SHARDS / f"train-{number:03d}-of-003")
    return copies[0], copies[1]


def train(where: Path, exp: Path, *options: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert main(["train", "recipe.yaml", "--exp", str(exp), *SHORT, *options]) == 0


@pytest.mark.parametrize("order", ["shuffle", "blocks"])
def test_one_host_with_all_shards_trains_as_without(folder: Path, sharded: Path, tmp_path: Path, order: str) -> None:
    models = []
    for number, where in enumerate((folder, sharded)):
        train(where, tmp_path / f"exp{number}", f"training.order={order}")
        models.append((tmp_path / f"exp{number}" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize(("strategy", "order"), [("ssgd", "blocks"), ("adpsgd", "shuffle")])
def test_hosts_train_their_own_shards_and_every_frame_once(
    folder: Path, hosts: tuple[Path, Path], tmp_path: Path, strategy: str, order: str
) -> None:
    exp = tmp_path / "exp"
    options = ["--exp", str(exp), "--strategy", strategy, *SHORT, f"training.order={order}"]
    with two_hosts((2, 1), *options, where=hosts) as processes:
        statuses, text = ends(processes)
    assert statuses == [0, 0, 0], text
    train(folder, tmp_path / "whole")
    frames = of_kind(read_events(tmp_path / "whole" / "events.jsonl"), RunStarted)[0].train_frames
    events = read_events(exp / "events.jsonl")
    assert of_kind(events, RunStarted)[0].train_frames == frames
    (segment,) = of_kind(events, Segment)
    first, second, third = segment.learner_frames
    assert first + second + third == segment.frames == frames
    said = " ".join(text.split())
    assert "host 0 draws from shards 0, 1 (" in said
    assert f"host 1 draws from shards 2 ({third:,} frames)" in said
    assert Results.from_json(read_json(exp / Results.FILE)).frame_cross_entropy["dev"] < 3.0


def test_hosts_of_other_cuts_are_refused(folder: Path, hosts: tuple[Path, Path], tmp_path: Path) -> None:
    options = ["--exp", str(tmp_path / "exp"), "--strategy", "ssgd", *SHORT]
    with two_hosts((1, 1), *options, where=(hosts[0], folder)) as processes:
        statuses, text = ends(processes)
    assert statuses == [2, 2], text
    cuts = "in 3 shards on the host of learner 0 and not in shards on the host of learner 1"
    assert f"the training features are {cuts}" in " ".join(text.split())


def test_a_host_with_some_shards_alone_has_a_smaller_corpus(hosts: tuple[Path, Path], tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    there = start(["roundelay.cli", "train", "recipe.yaml", "--exp", str(exp), *SHORT], hosts[1])
    statuses, text = ends([there])
    assert statuses == [0], text
    assert "shards 0 of 3 are nowhere: the corpus is smaller by them" in " ".join(text.split())
