"""icefall's zipformer recipe on AN4: its data, one learner, and the held-out losses of models written down on the way.

    python icefall_an4.py prepare --source AN4 --data DIR
    python icefall_an4.py learn --icefall CLONE --data DIR --way alone --rank 0 --notes DIR [--seconds 60]
    python icefall_an4.py judge --icefall CLONE --data DIR --notes DIR

AN4 has `train` and `dev` folders with Kaldi's `text` and `wav.scp`, paths relative to AN4. CLONE is icefall with
icefall_zipformer.patch for Roundelay's ways, without it for `alone` and `ddp`, which is the recipe's own. Needed are
lhotse, soundfile, sentencepiece, kaldialign, pypinyin and tensorboard. to_loss.py runs all ways on two hosts.

Changed in the recipe, in memory: gloo in the place of NCCL; 40 bands every 20 ms; no validation, checkpoints
and saves, which take time from some ways and not from others; and a look at the clock in the step of the schedule,
where the slow learner sleeps too.
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import k2_by_torch
import numpy as np
import torch

SIZE = shlex.split(
    "--num-encoder-layers 1,1,1 --downsampling-factor 1,2,4 --encoder-dim 64,96,64 --encoder-unmasked-dim 64,64,64 "
    "--feedforward-dim 128,192,128 --num-heads 4,4,4 --query-head-dim 16 --value-head-dim 12 "
    "--cnn-module-kernel 15,15,15 --pos-dim 16 --use-transducer 0 --use-ctc 1 --enable-musan 0 --enable-spec-aug 0 "
    "--full-libri 0 --num-workers 0 --tensorboard 0 --num-buckets 8 --num-epochs 10000 --lr-epochs 1000 "
    "--average-period 4000"
)
PARTS = {"train-clean-100": ("train", 0, 1), "dev-clean": ("dev", 0, 2), "dev-other": ("dev", 1, 2)}
"""The recipe's names, and which part of AN4 each has."""
PIECES = 60
MELS = 40
"""Bands of the features, of 80: the first convolutions do most of the work, and no option makes them smaller."""
SHIFT = 0.02
"""Seconds between frames, of 0.01."""


def prepare(source: Path, data: Path) -> None:
    """Features, as the recipe's own preparation makes them, and word pieces."""
    import sentencepiece
    from lhotse import CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment

    data.mkdir(parents=True, exist_ok=True)
    for name, (part, first, step) in PARTS.items():
        text = dict(line.split(maxsplit=1) for line in (source / part / "text").read_text().splitlines())
        waves = dict(line.split(maxsplit=1) for line in (source / part / "wav.scp").read_text().splitlines())
        cuts = []
        for utterance in sorted(text)[first::step]:
            recording = Recording.from_file(source / waves[utterance].strip(), recording_id=utterance)
            said = SupervisionSegment(utterance, utterance, 0.0, recording.duration, text=text[utterance].strip())
            cuts.append(MonoCut(utterance, 0.0, recording.duration, 0, supervisions=[said], recording=recording))
        extractor = Fbank(FbankConfig(num_mel_bins=MELS, frame_shift=SHIFT))
        made = CutSet.from_cuts(cuts).compute_and_store_features(extractor, data / f"feats-{name}", num_jobs=1)
        made.to_file(data / f"librispeech_cuts_{name}.jsonl.gz")
        if part == "train":
            (data / "text").write_text("\n".join(text.values()))
    sentencepiece.SentencePieceTrainer.train(
        input=str(data / "text"),
        model_prefix=str(data / "bpe"),
        vocab_size=PIECES,
        model_type="bpe",
        user_defined_symbols=["<blk>", "<sos/eos>"],
        unk_id=2,
        bos_id=-1,
        eos_id=-1,
    )


def recipe(icefall: Path, data: Path, notes: Path, *words: str) -> tuple[ModuleType, argparse.Namespace]:
    """Return the recipe's `train.py`, and its options."""
    k2_by_torch.install()
    sys.path[:0] = [str(icefall), str(icefall / "egs/librispeech/ASR/zipformer")]
    import train  # type: ignore[import-not-found]

    places = ["--manifest-dir", str(data), "--bpe-model", str(data / "bpe.model"), "--exp-dir", str(notes / "exp")]
    sys.argv = ["train.py", *SIZE, *places, *words]
    parser = train.get_parser()
    train.LibriSpeechAsrDataModule.add_arguments(parser)
    options = parser.parse_args()
    options.exp_dir = Path(options.exp_dir)
    defaults = train.get_params

    def get_params() -> Any:
        params = defaults()
        params.feature_dim = MELS
        return params

    train.get_params = get_params
    return train, options


class Watch:
    """Called in every step, between the backward pass and the update: sleeps, and writes the model down at its moments.

    Args:
        seconds: until the last of `looks` equally distant looks, from the first step on.
        slower: by this factor, by a sleep after what the processor did since the last call.
    """

    def __init__(self, notes: Path, rank: int, seconds: float, looks: int, slower: float) -> None:
        self.notes, self.rank, self.slower = notes, rank, slower
        self.moments = [seconds * (look + 1) / looks for look in range(looks)]
        self.model: torch.nn.Module | None = None
        self.steps, self.began, self.look, self.busy = 0, 0.0, 0, time.thread_time()

    def step(self) -> None:
        """One step of the learner."""
        assert self.model is not None
        if self.slower > 1 and self.steps:
            time.sleep((self.slower - 1) * (time.thread_time() - self.busy))
        now = time.monotonic()
        self.began = self.began or now
        self.steps += 1
        while self.look < len(self.moments) and now - self.began >= self.moments[self.look]:
            place = self.notes / f"weights-{self.rank}-{self.look}"
            weights = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
            weights.numpy().astype(np.float32).tofile(place)
            fact = {"at": now, "began": self.began, "steps": self.steps, "busy": time.process_time()}
            place.with_suffix(".json.part").write_text(json.dumps(fact))
            place.with_suffix(".json.part").rename(place.with_suffix(".json"))
            self.look += 1
        self.busy = time.thread_time()


def learn(options: argparse.Namespace, words: list[str]) -> None:
    """One learner, until it is killed."""
    torch.set_num_threads(1)
    world = ["--world-size", "2"] if options.way == "ddp" else []
    train, given = recipe(options.icefall, options.data, options.notes, *words, *world)
    watch = Watch(options.notes, options.rank, options.seconds, options.looks, options.slower if options.rank else 1.0)

    def make(params: Any, made: Any = train.get_model) -> torch.nn.Module:
        watch.model = made(params)
        return watch.model

    class Timed(train.Eden):  # type: ignore[misc,name-defined]
        def step_batch(self, batch: int | None = None) -> None:
            super().step_batch(batch)
            watch.step()

    class OnCpu(train.DDP):  # type: ignore[misc,name-defined]
        def __init__(self, module: torch.nn.Module, device_ids: object, **others: Any) -> None:
            super().__init__(module, **others)

    def meet(rank: int, learners: int, port: int) -> None:
        where = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=learners)

    def nothing(*_: Any, **__: Any) -> str:
        return "left out"

    train.get_model, train.Eden, train.DDP, train.setup_dist = make, Timed, OnCpu, meet
    train.scan_pessimistic_batches_for_oom = train.compute_validation_loss = train.save_checkpoint = nothing
    if options.way not in ("alone", "ddp"):
        train.roundelay.Session.save = nothing
    if options.way == "ddp":
        train.run(options.rank, 2, given)
    else:
        train.main()


def judge(options: argparse.Namespace, words: list[str]) -> None:
    """Print the curve of a run: held-out loss of the mean of the learners' models, at each look."""
    torch.set_num_threads(1)
    train, given = recipe(options.icefall, options.data, options.notes, *words)
    params = train.get_params()
    params.update(vars(given))
    pieces = train.spm.SentencePieceProcessor()
    pieces.load(params.bpe_model)
    params.blank_id, params.vocab_size, params.ctc_loss_scale = pieces.piece_to_id("<blk>"), len(pieces), 1.0
    corpus = train.LibriSpeechAsrDataModule(given)
    held_out = list(corpus.valid_dataloaders(corpus.dev_clean_cuts() + corpus.dev_other_cuts()))
    model = train.get_model(params).eval()
    notes = options.notes
    ranks = sorted({int(path.stem.split("-")[1]) for path in notes.glob("weights-*.json")})
    looks = sorted({int(path.stem.split("-")[2]) for path in notes.glob("weights-*.json")})
    curve = []
    for look in looks:
        places = [notes / f"weights-{rank}-{look}" for rank in ranks]
        if not all(place.with_suffix(".json").exists() for place in places):
            continue
        facts = [json.loads(place.with_suffix(".json").read_text()) for place in places]
        mean = np.mean([np.fromfile(place, np.float32) for place in places], axis=0)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(mean), model.parameters())
        found = [train.compute_loss(params, model, pieces, batch, is_training=False)[1] for batch in held_out]
        loss = sum(one["loss"] for one in found) / sum(one["frames"] for one in found)
        seconds = max(fact["at"] for fact in facts) - min(fact["began"] for fact in facts)
        curve.append({"seconds": seconds, "loss": loss, "steps": [fact["steps"] for fact in facts]})
    print(json.dumps({"parameters": sum(one.numel() for one in model.parameters()), "curve": curve}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("prepare", "learn", "judge"))
    for place in ("--source", "--data", "--icefall", "--notes"):
        parser.add_argument(place, type=lambda text: Path(text).resolve())
    parser.add_argument("--way", default="alone", help="alone, ddp, or a strategy")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--looks", type=int, default=12)
    parser.add_argument("--slower", type=float, default=1.0, help="factor of the learner of rank 1")
    options, words = parser.parse_known_args()
    if options.act == "prepare":
        prepare(options.source, options.data)
    else:
        {"learn": learn, "judge": judge}[options.act](options, words)


if __name__ == "__main__":
    main()
