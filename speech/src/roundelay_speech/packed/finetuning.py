"""Further training of a packed model with a few minutes of a speaker: their way of speaking, and their words.

The speech is labelled by the model itself (labelling), with its own tied states or units, so that labels fit its
outputs. Each network is trained on for some epochs of small steps, all of its layers; front end, prior, grammar and
settings of the search stay. The new folder appears whole or not at all.

A few minutes have few of the words and sounds there are, and a network soon learns from them that the others do not
exist. Two things keep it from that. The first layer alone is trained, which moves a speaker's sounds to places that the
layers behind it know from others. And the network may be held to its outputs of before, frame by frame (Yu, Yao, Su, Li
and Seide 2013, "KL-divergence regularized deep neural network adaptation"):

    loss = (1 - r) objective(labels) + r KL(p_before || p) + constant

Legend: P parameters, S columns of scores.
"""

import copy
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from roundelay import __version__
from roundelay.core.checksums import read_checked, write_checked
from roundelay.core.epochs import EpochPlan
from roundelay.core.errors import UserError
from roundelay.core.files import atomic_write, read_json, write_text
from roundelay.core.flat import load as load_flat
from roundelay.core.progress import Progress, tracked
from roundelay.core.state import Statistics
from roundelay.learner.module import Examples, ModuleLearner
from roundelay.learner.objectives import CrossEntropy, Evidence, Inputs, Objective
from roundelay_speech.corpus.words import CleanedSplits, by_kind, written_so
from roundelay_speech.data.manifest import Utterance
from roundelay_speech.data.problems import counted, listing, named
from roundelay_speech.lexicon.cleaning import Change
from roundelay_speech.lexicon.g2p import load_g2p
from roundelay_speech.lexicon.lexicon import Pronunciation
from roundelay_speech.models.network import FrameNetwork
from roundelay_speech.objectives.ctc import Ctc
from roundelay_speech.packed.card import Card, Vocabulary, write_model
from roundelay_speech.packed.folder import CARD, G2P, REMEDY, PackedModel, checksum_below, read_packed
from roundelay_speech.packed.labelling import HeardSpeech, LabelledSpeech, label_speech
from roundelay_speech.packed.making import new_folder, refuse_existing
from roundelay_speech.packed.model import Model, load_model
from roundelay_speech.packed.rewording import Rewording, reword
from roundelay_speech.packed.speech_data import SpeechData
from roundelay_speech.packed.transcripts import in_words_of, known_words
from roundelay_speech.trained import MODEL, MODEL_META, AcousticModel

SPLICED_FRAMES, SEQUENCE_FRAMES, UTTERANCES = 256, 1024, 8
"""Examples of a minibatch: frames of networks that splice, frames of those of sequences, and utterances of models
without an alignment."""
_SPLIT = "train"
Layers = Literal["first", "all"]


@dataclass(frozen=True)
class SmallSteps:
    """Options of further training: small steps that change little."""

    epochs: int = 10  # through the speech
    learning_rate: float = 5e-4  # of Adam, at first; it falls to nothing along a line
    layers: Layers = "first"  # that are trained: the first, where the features come in, or all
    hold: float = 0.0  # r, the share of the loss that is the distance from the network's outputs of before
    clip: float = 5.0  # norm of a gradient, at most
    seed: int = 0  # of the order of examples, and of dropout

    def __post_init__(self) -> None:
        for name, value, least in (("epochs", self.epochs, 1), ("seed", self.seed, 0)):
            if value < least:
                raise UserError(f"--{name} {value}: give {least} or more.")
        if not 0 < self.learning_rate < 1:
            raise UserError(f"--learning-rate {self.learning_rate:g}: give a number between 0 and 1, 0.0005 for one.")
        if not 0 <= self.hold < 1:
            raise UserError(f"--hold {self.hold:g}: give a share from 0 up to, not including, 1; 0.5 for one.")


@final
@dataclass(frozen=True, eq=False)
class Held(Objective):
    """An objective, plus the distance of a network's posteriors from those before the training."""

    goal: Objective  # the objective; its own loss is reported
    before: nn.Module  # the network as it was, in evaluation mode
    share: float  # of the distance in the loss
    name: str = "held"

    def loss(self, module: Callable[..., Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Evidence]:
        given: list[Tensor] = []

        def kept(*inputs: Tensor) -> Tensor:
            given.append(module(*inputs))
            return given[-1]

        loss, evidence = self.goal.loss(kept, inputs, targets)
        with torch.no_grad():
            before = torch.log_softmax(self.before(*inputs).float(), -1)
        scores = torch.log_softmax(given[-1].float(), -1)
        distance = nn.functional.kl_div(scores, before, log_target=True, reduction="sum") / len(targets)
        return (1 - self.share) * loss + self.share * distance, evidence

    def statistics(self, evidence: Evidence, targets: Tensor) -> Statistics:
        return self.goal.statistics(evidence, targets)


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """The parameters of a network after further training, and its loss before and after."""

    parameters: Tensor  # (P,)
    # before, after: mean loss of an example (a frame, or an utterance) of the speech.
    before: float
    after: float


def train_on(
    model: Model, network: int, speech: tuple[HeardSpeech, LabelledSpeech], how: SmallSteps, progress: Progress
) -> TrainedOn:
    """Train one network of a packed model further, which changes the model itself.

    Raises:
        UserError: the loss has become NaN.
    """
    heard, labelled = speech
    module, store = model.hearings[network].model.module, heard.store(model, network)
    objective: Objective
    examples: Examples
    if labelled.units is None:
        examples, objective = module.examples(store, labelled.states, {_SPLIT: labelled.used}), CrossEntropy()
        size = SPLICED_FRAMES if isinstance(module, FrameNetwork) else SEQUENCE_FRAMES
    else:
        examples, objective, size = module.utterances(store, {_SPLIT: labelled.units}), Ctc(), UTTERANCES
    held = Held(objective, copy.deepcopy(module).eval(), how.hold)
    learner = ModuleLearner(module, examples, clip=how.clip, objective=held)
    x = learner.initial()
    before = learner.evaluate(x, _SPLIT).mean_loss
    gradient, optimizer = torch.empty_like(x), torch.optim.Adam([x], lr=how.learning_rate)
    trained = _first_layer(module) if how.layers == "first" else torch.ones_like(x)
    plans = [EpochPlan(epoch, learner.examples, size, 1, how.seed) for epoch in range(how.epochs)]
    steps, done = sum(plan.pieces for plan in plans), 0
    progress.start("training on", steps)
    for plan in plans:
        for index in range(plan.pieces):
            learner.gradient(x, plan.piece(index), plan, gradient)
            x.grad = gradient.mul_(trained)
            optimizer.param_groups[0]["lr"] = how.learning_rate * (1 - done / steps)
            optimizer.step()
            done += 1
            progress.advance()
    progress.finish()
    after = learner.evaluate(x, _SPLIT).mean_loss
    if not torch.isfinite(x).all():
        raise UserError("The loss is no number any more: give a lower --learning-rate.")
    module.eval()
    return TrainedOn(x, before, after)


def _first_layer(module: nn.Module) -> Tensor:
    """Return a mask (P,): 1 for the parameters of the first layer, 0 for the others."""
    named = list(module.named_parameters())
    first = named[0][0].rpartition(".")[0]
    return torch.cat([torch.full((p.numel(),), float(name.rpartition(".")[0] == first)) for name, p in named])


LEAST_SECONDS = 10.0
"""Fewest seconds of speech to train on: of less, a network forgets more than it learns."""
LITTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Finetuning:
    """Options of `roundelay finetune`."""

    out: Path  # the folder that is made
    words: Path | None = None  # a file of words to add, as `roundelay pack --words` takes it
    steps: SmallSteps = SmallSteps()  # how the networks are trained on
    # of speech without transcripts, utterances are trained on whose words are this sure on average; None: such speech
    # is refused.
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise UserError(f"--confidence {self.confidence:g}: give a number from 0 to 1.")


@dataclass(frozen=True)
class Finetuned:
    """The results of `finetune`."""

    # utterances, seconds: of speech that was trained on.
    utterances: int
    seconds: float
    # before, after: mean loss of a frame, or of an utterance of models without an alignment, on that speech.
    before: float
    after: float
    card: Card
    remarks: Sequence[str]  # sentences on what was left out or guessed, for people


def finetune(source: Path, data: SpeechData, options: Finetuning, progress: Progress) -> Finetuned:
    """Train a packed model further with speech, into `options.out`, which then is whole or does not exist.

    Raises:
        UserError: not a packed model, or one that was damaged; the folder exists; words lack a pronunciation; too
            little speech; speech and transcripts do not belong together.
    """
    refuse_existing(options.out)
    read_packed(source)
    with tempfile.TemporaryDirectory() as scratch, new_folder(options.out) as folder:
        if options.words is not None:
            reword(source, Rewording(Path(scratch) / "own", options.words), progress)
            source = Path(scratch) / "own"
        model = load_model(source)
        data, changed = in_words_of(model, data)
        utterances = [u for some in data.splits.values() for u in some if not u.copied]
        remarks = [*_rates(utterances, model.sample_rate), *_rewritten(changed)]
        heard = HeardSpeech.of(model, data, utterances, progress)
        if not any(u.words for u in utterances):
            heard, said = _transcribed(model, heard, options.confidence, progress)
            remarks.append(said)
        if new := new_words(model, heard.utterances):
            source, said = with_said_words(model, new, Path(scratch), progress)
            remarks.append(said)
            model = load_model(source)
        labelled = label_speech(model, heard, known_words(model), progress)
        seconds = _enough(labelled, heard)
        remarks += _amiss(labelled, len(heard.utterances), seconds)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        trained = [
            train_on(model, number, (heard, labelled), options.steps, progress) for number in range(len(model.hearings))
        ]
        for hearing, packed, one in zip(model.hearings, model.packed.networks, trained, strict=True):
            write_network(folder / packed.folder, hearing.model, one)
        card = _write_card(folder, model.packed, labelled, seconds, options)
    return Finetuned(len(labelled.used), seconds, trained[0].before, trained[0].after, card, tuple(remarks))


def _rewritten(changed: Mapping[str, CleanedSplits]) -> list[str]:
    """Return remarks on changes in transcripts, and on utterances left out because of them."""
    changes = sum((Counter(clean.changes) for clean in changed.values()), Counter[Change]())
    remarks = [written_so(by_kind(changes))] if changes else []
    gone = [one.reason for clean in changed.values() for one in clean.left_out]
    if gone:
        remarks.append(f"{counted(len(gone), 'utterance')} left out for what is written of it:\n{listing(gone)}")
    return remarks


def _rates(utterances: Sequence[Utterance], rate: int) -> list[str]:
    """Return remarks on audio at a lower rate than the model's."""
    lower = [u.sampling_rate for u in utterances if u.sampling_rate < rate]
    if not lower:
        return []
    return [
        f"{counted(len(lower), 'utterance')} at {min(lower):,} Hz brought up to {rate:,} Hz: nothing is in them above "
        f"{min(lower) // 2:,} Hz, where the model hears"
    ]


def _transcribed(model: Model, heard: HeardSpeech, least: float | None, progress: Progress) -> tuple[HeardSpeech, str]:
    """Recognise utterances; return those that the model is sure of, with the words found, and a remark.

    Raises:
        UserError: the model is sure of none, or gives no confidences.
    """
    if least is None:
        raise UserError(
            "The speech has no transcripts. Write down what is said; or have the model learn its own words, which may "
            "make it worse, with --confidence 0, or of those it is sure of with --confidence 0.9."
        )
    if not model.gives_times:
        raise UserError(
            f"{model.folder}: a model trained without an alignment does not say how sure it is of its words, so it "
            "learns nothing from speech without transcripts. Write down what is said."
        )
    kept: list[tuple[int, str]] = []
    for place, (utterance, features) in tracked(
        progress, "transcribing", enumerate(zip(heard.utterances, heard.features, strict=True)), len(heard.utterances)
    ):
        found = model.of_features(features, heard.statistics[utterance.speaker], believing="all")
        sure = sum(word.confidence or 0.0 for word in found.timed) / max(1, len(found.timed))
        if found.words and found.complete and sure >= least:
            kept.append((place, found.text))
    if not kept:
        raise UserError(
            f"The speech has no transcripts, and the model is less than {100 * least:g} % sure of its words in all "
            f"{len(heard.utterances)} utterances. Write down what is said, or give a lower --confidence."
        )
    some = HeardSpeech(
        tuple(replace(heard.utterances[place], text=text) for place, text in kept),
        tuple(heard.features[place] for place, _ in kept),
        heard.statistics,
    )
    return some, (
        f"no transcripts: the model's own words in {len(kept)} of {counted(len(heard.utterances), 'utterance')}, of "
        f"which it is {100 * least:g} % sure, are taken for what was said"
    )


def _enough(labelled: LabelledSpeech, heard: HeardSpeech) -> float:
    """Check that there is enough speech to train on; return its seconds.

    Raises:
        UserError: there is too little speech, or speech and transcripts do not belong together.
    """
    used = set(labelled.used)
    seconds = sum(u.duration for u in heard.utterances if u.id in used)
    if 2 * len(labelled.left_out) > len(heard.utterances):
        raise UserError(
            f"{len(labelled.left_out)} of {counted(len(heard.utterances), 'utterance')} cannot be used. Do transcripts "
            f"and audio belong together?\n{listing([one.reason for one in labelled.left_out])}"
        )
    if not labelled.fits:
        raise UserError(
            "About half of all utterances fit words of others better than their own. Do transcripts and audio belong "
            "together? If they do, the model understands too little of this speech to learn from it."
        )
    if seconds < LEAST_SECONDS:
        raise UserError(
            f"{seconds:.1f} s of speech are too little to train on: {LEAST_SECONDS:g} s are the least, and a few "
            "minutes help more."
        )
    return seconds


def _amiss(labelled: LabelledSpeech, of: int, seconds: float) -> list[str]:
    """Return remarks on utterances left out, and on little speech."""
    found = [f"{seconds:.0f} s of speech are little; a few minutes help more"] if seconds < LITTLE_SECONDS else []
    if labelled.doubtful:
        found.append(
            f"{len(labelled.doubtful)} of {counted(of, 'utterance')} fit words of others about as well as their own. "
            f"Are these what is said? {named(labelled.doubtful)}"
        )
    if labelled.left_out:
        reasons = listing([one.reason for one in labelled.left_out])
        found.append(f"{len(labelled.left_out)} of {counted(of, 'utterance')} left out:\n{reasons}")
    return found


def write_network(folder: Path, model: AcousticModel, trained: TrainedOn) -> None:
    """Write a network of a packed model with new parameters, and all else unchanged."""
    load_flat(model.module, trained.parameters)
    tensors = {name: value.detach().clone().contiguous() for name, value in model.module.state_dict().items()}
    tensors["prior"] = torch.from_numpy(model.prior)
    told = read_checked(folder / MODEL_META, REMEDY)
    with atomic_write(folder / MODEL) as file:
        file.write(save(tensors))
    write_checked(folder / MODEL_META, told, [MODEL])


def _write_card(
    folder: Path, packed: PackedModel, labelled: LabelledSpeech, seconds: float, options: Finetuning
) -> Card:
    """Write card and packed.json, without the word errors, which were those of the old model."""
    told = read_json(folder / CARD)
    done = {
        "utterances": len(labelled.used),
        "seconds": round(seconds, 1),
        "epochs": options.steps.epochs,
        "learning_rate": options.steps.learning_rate,
        "made_by": f"roundelay {__version__}",
    }
    finetuned = [*told.get("finetuned", ()), done]
    words = Vocabulary(**told["vocabulary"])
    changed = {"name": options.out.name, "vocabulary": words, "finetuned": finetuned}
    card = Card(**{**told, **changed, "word_errors": {}, "confidences": {}})
    below: dict[str, str] = {}
    for network in packed.networks:
        below |= checksum_below(folder, network.folder)
    write_model(folder, card, replace(packed, below=below))
    return card


def new_words(model: Model, utterances: Sequence[Utterance]) -> list[str]:
    """Return the words of the transcripts that the model cannot recognise."""
    return sorted({word for u in utterances for word in u.words if word not in model.lexicon})


def with_said_words(model: Model, new: Sequence[str], scratch: Path, progress: Progress) -> tuple[Path, str]:
    """Add words of transcripts that a model cannot recognise; return the folder of the model with them, and a remark
    that names them.

    Raises:
        UserError: pronunciations are unknown; names all such words.
    """
    listed, out = scratch / "said.txt", scratch / "said"
    guesses = {} if model.columns.spelled(new) is not None else _guesses(model, new)
    write_text(listed, "".join(f"{word}\n" for word in new))
    reword(model.folder, Rewording(out, listed), progress)
    told = [f"{word} ({' '.join(guesses[word])}, guessed)" if word in guesses else word for word in new]
    return out, f"{counted(len(new), 'word')} of the transcripts added to those that are recognised: {named(told)}"


def _guesses(model: Model, words: Sequence[str]) -> dict[str, Pronunciation]:
    """Return guessed pronunciations of the words that no dictionary has.

    Raises:
        UserError: some words cannot be guessed; names all.
    """
    known = known_words(model)
    guesser = load_g2p(model.folder / G2P) if (model.folder / G2P).is_file() else None
    found, lacking = dict[str, Pronunciation](), list[str]()
    for word in words:
        if word in known:
            continue
        if guesser is not None and (guess := guesser.pronounce(word)):
            found[word] = guess[0].phones
        else:
            lacking.append(word)
    if lacking:
        raise UserError(
            f"{counted(len(lacking), 'word')} of the transcripts without pronunciation, and none can be guessed. Write "
            "them into a file, a line each with their phones behind them (--words FILE), or mend the transcripts:\n"
            f"{listing(lacking)}"
        )
    return found
