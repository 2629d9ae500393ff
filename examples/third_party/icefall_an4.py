"""icefall's zipformer recipe on AN4: its data, one learner, and the held-out losses of models written down on the way.

    python icefall_an4.py prepare --source AN4 --data DIR
    python icefall_an4.py learn --clone CLONE --data DIR --way alone --rank 0 --notes DIR [--seconds 60]
    python icefall_an4.py judge --clone CLONE --data DIR --notes DIR

AN4 has `train` and `dev` folders with Kaldi's `text` and `wav.scp`, paths relative to AN4. CLONE is icefall with
icefall_zipformer.patch for Roundelay's ways, without it for `alone` and `ddp`, which is the recipe's own. Needed are
lhotse, soundfile, sentencepiece, kaldialign, pypinyin and tensorboard. to_loss.py runs all ways on two hosts.

Changed in the recipe, in memory: gloo in the place of NCCL; 40 bands every 20 ms; no validation, checkpoints
and saves, which take time from some ways and not from others; and a look at the clock in the step of the schedule,
where the slow learner sleeps too.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import k2_by_torch
import looks
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


def prepare(options: argparse.Namespace, _: list[str]) -> None:
    """Features, as the recipe's own preparation makes them, and word pieces."""
    source, data = options.source, options.data
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


def recipe(options: argparse.Namespace, words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return the recipe's `train.py`, and its options."""
    data, notes = options.data, options.notes
    k2_by_torch.install()
    sys.path[:0] = [str(options.clone), str(options.clone / "egs/librispeech/ASR/zipformer")]
    import train  # type: ignore[import-not-found]

    places = ["--manifest-dir", str(data), "--bpe-model", str(data / "bpe.model"), "--exp-dir", str(notes / "exp")]
    sys.argv = ["train.py", *SIZE, *places, *words]
    parser = train.get_parser()
    train.LibriSpeechAsrDataModule.add_arguments(parser)
    given = parser.parse_args()
    given.exp_dir = Path(given.exp_dir)
    defaults = train.get_params

    def get_params() -> Any:
        params = defaults()
        params.feature_dim = MELS
        return params

    train.get_params = get_params
    return train, given


def learn(options: argparse.Namespace, words: list[str]) -> None:
    """One learner, until it is killed."""
    world = ["--world-size", "2"] if options.way == "ddp" else []
    train, given = recipe(options, [*words, "--base-lr", str(options.learning_rate), *world])
    watch = looks.watch(options)

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
    """Print the curve: the recipe's own loss of the held-out utterances, a frame."""
    train, given = recipe(options, words)
    params = train.get_params()
    params.update(vars(given))
    pieces = train.spm.SentencePieceProcessor()
    pieces.load(params.bpe_model)
    params.blank_id, params.vocab_size, params.ctc_loss_scale = pieces.piece_to_id("<blk>"), len(pieces), 1.0
    corpus = train.LibriSpeechAsrDataModule(given)
    held_out = list(corpus.valid_dataloaders(corpus.dev_clean_cuts() + corpus.dev_other_cuts()))
    model = train.get_model(params).eval()

    def loss() -> float:
        found = [train.compute_loss(params, model, pieces, batch, is_training=False)[1] for batch in held_out]
        return float(sum(one["loss"] for one in found) / sum(one["frames"] for one in found))

    looks.print_curve(options.notes, model, loss)


if __name__ == "__main__":
    looks.main(__doc__, prepare, learn, judge)
