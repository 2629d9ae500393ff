"""The command line: parses, calls, prints. Nothing is computed here."""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from roundelay import __version__
from roundelay.core.errors import UserError
from roundelay.runtime.procs.threads import wait_politely
from roundelay.terminal import Bar, complain, console, print_table, tidy

if TYPE_CHECKING:
    from roundelay.recipes.recipe import Recipe
    from roundelay.runtime.procs.launch import Place
    from roundelay.speech.features import FeatureConfig

COMPARED = ["ssgd", "delay-by-one", "adpsgd:fixed-ring", "adpsgd:random-ring"]
"""What `simulate` compares unless told otherwise."""
DEFAULT_LEARNERS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 a defect, 2 something the user can mend, 130 interrupted."""
    options = _parse(arguments)
    wait_politely()  # before any command imports torch
    try:
        with tidy():
            return int(options.run(options) or 0)
    except UserError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted.")
        return 130


# prepare --------------------------------------------------------------------------------------------------------------


def _prepare(options: argparse.Namespace) -> None:
    from roundelay.speech.corpus.build import PrepareOptions, prepare_kaldi, prepare_lhotse
    from roundelay.speech.corpus.demo import prepare_demo
    from roundelay.speech.corpus.named import NAMED, Request, prepare_named
    from roundelay.speech.corpus.prepared import GUESSED_LEXICON, HELD_OUT_LEXICON
    from roundelay.speech.culprits import listing

    data = options.data or Path("demo/data" if options.corpus == "demo" else f"data/{options.corpus}")
    how = PrepareOptions(
        on_bad=options.on_bad_audio, on_missing_words=options.on_missing_words, map_to=options.map_to,
        strip_stress=options.strip_stress, lexicon_case=options.lexicon_case, max_bad_share=options.max_bad_share,
        workers=options.workers, features=_feature_options(options), speeds=tuple(options.speed),
        allow_pipes=options.allow_pipes, pipe_seconds=options.pipe_seconds, given_features=options.use_feats,
        frame_shift_ms=options.frame_shift_ms,
    )  # fmt: skip
    splits = tuple(_split(text) for text in options.split or ())
    if options.corpus == "demo":
        corpus = prepare_demo(data, Bar(), seed=options.seed)
    elif options.corpus in NAMED:
        request = Request(
            options.corpus, options.source, tuple(options.also), options.download, options.lexicon, splits,
            options.vocabulary, options.vocabulary_size, how,
        )  # fmt: skip
        corpus = prepare_named(request, data, Bar())
    else:
        if options.source is None:
            raise UserError(f"prepare {options.corpus} needs --source, the folder that holds the corpus.")
        if options.lexicon is None:
            raise UserError(f"prepare {options.corpus} needs --lexicon, a pronunciation dictionary in CMU format.")
        standard = {split: split for split in ("train", "dev", "test")} if options.corpus == "kaldi" else {}
        prepare = prepare_kaldi if options.corpus == "kaldi" else prepare_lhotse
        corpus = prepare(
            options.source, data, options.lexicon, dict(splits) or standard, Bar(), options=how, name=data.name
        )
    rows = [
        (name, f"{len(some)}", f"{sum(u.duration for u in some) / 3600:.2f}", f"{len({u.speaker for u in some})}")
        for name, some in corpus.splits.items()
    ]
    print_table(["split", "utterances", "hours", "speakers"], rows)
    for split, culprits in corpus.left_out.items():
        console.print(
            f"{split}: left out {len(culprits)} of {len(culprits) + len(corpus.splits[split])} utterances:\n"
            f"{listing([one.reason for one in culprits])}",
            markup=False,
        )
    if corpus.guessed:
        guessed = "1 pronunciation was" if corpus.guessed == 1 else f"{corpus.guessed:,} pronunciations were"
        console.print(f"{guessed} guessed from spelling; see {data / GUESSED_LEXICON}", markup=False)
    if corpus.held_out_words:
        words = f"{len(corpus.held_out_words):,} words of held-out transcripts alone"
        console.print(f"{words} are there to align them, not to recognise them; see {data / HELD_OUT_LEXICON}")
    console.print(f"{corpus.name} is ready in {data}", markup=False)


def _export(options: argparse.Namespace) -> None:
    from roundelay.speech.corpus.export import export_kaldi, export_lhotse
    from roundelay.speech.corpus.prepared import load_corpus

    corpus = load_corpus(options.data)
    if options.format == "kaldi":
        done = export_kaldi(corpus, options.out, Bar(), features=options.features, splits=options.split or ())
    else:
        if options.features:
            raise UserError("export lhotse writes no features; only `roundelay export kaldi` takes --features.")
        done = export_lhotse(corpus, options.out, splits=options.split or ())
    for one in done:
        frames = "" if one.frames is None else f", {one.frames} frames of features"
        console.print(f"{one.split}: {one.utterances} utterances{frames} -> {one.folder}", markup=False)


def _split(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UserError(f"--split {text!r}: write NAME=FOLDER, for example train=data/train.")
    return name, folder


def _feature_options(options: argparse.Namespace) -> "FeatureConfig":
    """What `--features`, `--bins` ask for."""
    from roundelay.core.configure import build, read_yaml
    from roundelay.speech.features import FbankConfig, FeatureConfig, only_fbank

    if options.features is not None and options.bins is not None:
        raise UserError("Give --features or --bins, not both: a file of features names the bins of its filterbanks.")
    if options.features is not None:
        try:
            return build(FeatureConfig, read_yaml(options.features))
        except UserError as error:
            raise UserError(f"{options.features}: {error}") from None
    return only_fbank(FbankConfig(num_bins=options.bins)) if options.bins is not None else FeatureConfig()


def _features(options: argparse.Namespace) -> None:
    from roundelay.speech.corpus.build import change_features

    corpus = change_features(
        options.data, _feature_options(options), Bar(),
        speeds=options.speed, workers=options.workers, on_bad=options.on_bad_audio,
    )  # fmt: skip
    store = corpus.features()
    parts = ", ".join(f"{p.name} {p.width}{f' with {p.deltas} deltas' if p.deltas else ''}" for p in store.parts)
    console.print(f"{len(store.array):,} frames of {parts} are ready in {store.folder}", markup=False)


# import, export ------------------------------------------------------------------------------------------------------


def _import_alignment(options: argparse.Namespace) -> None:
    from roundelay.speech.corpus.prepared import load_corpus
    from roundelay.speech.hmm.interchange import ImportConfig, KaldiAlignment, import_kaldi, import_textgrids

    corpus = load_corpus(options.corpus)
    config = ImportConfig(
        tying=options.tying or ("kaldi" if options.kind == "kaldi" else "monophones"),
        tied_states=options.tied_states, shares=tuple(options.shares), tolerance=options.tolerance,
        failure_share=options.failure_share,
    )  # fmt: skip
    if options.kind == "kaldi":
        source = KaldiAlignment(
            tuple(options.ali), tuple(options.pdfs), model=options.model, tree=options.tree, phones=options.phones
        )
        summary = import_kaldi(corpus, corpus.features(), source, config, options.out, Bar())
    else:
        if options.grids is None:
            raise UserError("import-alignment textgrid needs --grids, the folder of the TextGrids.")
        summary = import_textgrids(corpus, corpus.features(), options.grids, config, options.out, Bar())
    console.print(f"{summary}\nalignment is ready in {options.out}", markup=False)


def _export_alignment(options: argparse.Namespace) -> None:
    from roundelay.speech.corpus.prepared import load_corpus
    from roundelay.speech.hmm.alignment import Alignment
    from roundelay.speech.hmm.export import export_kaldi, export_textgrids

    corpus, export = load_corpus(options.corpus), export_kaldi if options.kind == "kaldi" else export_textgrids
    number = export(corpus, corpus.features(), Alignment.load(options.alignment), options.out, Bar())
    console.print(f"{number} utterances written to {options.out}", markup=False)


# align, train, decode, score ------------------------------------------------------------------------------------------


def _align(options: argparse.Namespace) -> None:
    from roundelay.recipes.recipe import load_recipe
    from roundelay.speech.corpus.prepared import load_corpus
    from roundelay.speech.hmm.boundaries import synthesised_boundaries
    from roundelay.speech.hmm.flat_start import train_alignments

    recipe = load_recipe(options.recipe, options.overrides)
    corpus = load_corpus(recipe.corpus)
    summary = train_alignments(corpus, corpus.features(), recipe.align, recipe.alignment, Bar())
    console.print(f"{summary}\nalignment is ready in {recipe.alignment}", markup=False)
    for line in synthesised_boundaries(corpus, recipe.alignment):
        console.print(line, markup=False)


def _realign(options: argparse.Namespace) -> None:
    from roundelay.realignment import realign_with

    summary = realign_with(options.exp, options.out, Bar(), scale=options.scale, workers=options.workers)
    console.print(f"{summary}\nalignment is ready in {options.out}", markup=False)


def _overrides(options: argparse.Namespace) -> list[str]:
    given = list(options.overrides)
    for flag in ("strategy", "learners", "runtime", "seed", "on_death", "host_patience", "wire", "fragments"):
        value = getattr(options, flag)
        if value is not None:
            given.append(f"training.{flag}={value}")
    if options.record:
        given.append("training.record=true")
    if options.straggler:
        given.append(f"training.stragglers=[{', '.join(repr(text) for text in options.straggler)}]")
    return given


def _train(options: argparse.Namespace) -> int:
    """On one host, or, under torchrun's variables, on one of several."""
    from roundelay.runtime.procs.launch import Slots, lend, read_place

    place = read_place(options.listen)
    if place is None:
        return _train_here(options, None)
    if place.local_rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # local rank 0 answers it, which may take a round
        return lend(place)
    if options.learners not in (None, place.learners):
        raise UserError(f"--learners is {options.learners}, but WORLD_SIZE is {place.learners}: leave --learners out.")
    options.learners = place.learners
    slots, status = Slots(place), 1
    try:
        status = _train_here(options, place)
    except UserError:
        status = 2
        raise
    finally:
        slots.release(status)
    return status


def _train_here(options: argparse.Namespace, place: "Place | None") -> int:
    from roundelay.acoustic import make_job, make_terms
    from roundelay.recipes.recipe import load_recipe
    from roundelay.runtime.hosts.serving import serve
    from roundelay.training import Interrupt, train

    recipe = load_recipe(options.recipe, _overrides(options))
    job = make_job(recipe, options.exp, place)
    cluster = job.cluster
    if place is not None and not place.conducts:
        interrupt = Interrupt()
        with _ctrl_c(interrupt):
            terms = make_terms(recipe, cluster.strategy)
            serve(cluster, place, terms, lambda text: console.print(text, markup=False), lambda: interrupt.asked)
        return 0
    console.print(
        f"{cluster.strategy.label}, {cluster.learners} learner{'s' * (cluster.learners > 1)} on {job.runtime_name}, "
        f"{job.minibatch} frames a round ({job.minibatch // cluster.learners} a learner), seed {cluster.seed} "
        f"-> {options.exp}",
        markup=False,
    )
    interrupt = Interrupt()
    with _ctrl_c(interrupt):
        results = train(job, options.exp, Bar(), interrupt, resume_only=options.resume)
    if results is None:
        complain(f"interrupted; everything so far is in {options.exp}. The same command goes on from there.")
        return 130
    for split, loss in results.frame_cross_entropy.items():
        console.print(
            f"{split} frame cross-entropy {loss:.4f}, accuracy {100 * results.frame_accuracy[split]:.2f} %",
            markup=False,
        )
    console.print(
        f"{results.frames_seen:,} frames in {results.wall_seconds:.0f} s, "
        f"staleness mean {results.staleness['mean']:.1f} largest {results.staleness['largest']:.0f}; "
        f"stopped because {results.stopped}",
        markup=False,
    )
    return 0


@contextmanager
def _ctrl_c(interrupt: "object") -> Iterator[None]:
    """The first Ctrl-C asks the run to stop at the next round, with a checkpoint; the second stops it at once."""

    def ask(_: int, __: FrameType | None) -> None:
        if interrupt.asked:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        interrupt.asked = True  # type: ignore[attr-defined]
        complain("stopping at the next round; Ctrl-C again to stop at once.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _decode(options: argparse.Namespace) -> None:
    from roundelay.recognise import recognise

    if not options.exp:
        raise UserError("decode needs a run directory.")
    if len(options.exp) > 1 and (options.out or options.others):
        raise UserError("decode --with and --out are for one run directory; name further runs with --with.")
    others = []
    for text in options.others:
        path, weight = _weighted(text)
        others.append((path, _decode_recipe(path, options.set), weight))
    for exp in options.exp:
        for found in recognise(exp, _decode_recipe(exp, options.set), Bar(), others=others, out=options.out):
            console.print(
                f"{options.out or exp} {found.split}: {found.summary}  acoustic scale {found.search.scale:g}, "
                f"word cost {found.search.word_cost or 0.0:g}, beam {found.search.beam:g}, at most "
                f"{found.search.max_active:,} paths, {found.real_time_factor:.4f} x real time on one core",
                markup=False,
            )
            for name, part in found.subsets.items():
                console.print(f"  {name}: {part}", markup=False)


def _decode_recipe(exp: Path, overrides: Sequence[str]) -> "Recipe":
    from roundelay.core.configure import build, override, read_yaml
    from roundelay.recipes.recipe import Recipe

    if not (exp / "recipe.yaml").is_file():
        raise UserError(f"{exp}: not a run directory (no recipe.yaml). Give the --exp of a `roundelay train`.")
    mapping = read_yaml(exp / "recipe.yaml")
    for assignment in overrides:
        override(mapping, assignment)
    return build(Recipe, mapping)


def _weighted(text: str) -> tuple[Path, float]:
    """`EXP` or `EXP:WEIGHT`."""
    exp, colon, weight = text.rpartition(":")
    if Path(text).exists() or not colon:
        return Path(text), 1.0
    try:
        return Path(exp), float(weight)
    except ValueError:
        raise UserError(f"--with {text!r}: write EXP or EXP:WEIGHT, for example exp/blstm:0.5.") from None


def _score(options: argparse.Namespace) -> None:
    from roundelay.speech.scoring.cases import Rules
    from roundelay.speech.scoring.session import Asked, answers
    from roundelay.speech.scoring.shown import Wanted

    asked = Asked(options.exp, options.ref, options.hyp, options.stm, options.ctm, options.compare)
    rules = Rules(
        glm=options.glm, keep_hyphens=options.keep_hyphens, marked=options.marks, ignore_case=options.ignore_case,
        sclite_costs=options.sclite_costs, missing="empty" if options.missing_as_empty else "error",
    )  # fmt: skip
    wanted = Wanted(
        interval=options.interval, unit=options.over, per_speaker=options.per_speaker, subsets=options.subsets,
        table=options.table, confusions=options.confusions, errors=options.errors,
    )  # fmt: skip
    for text in answers(asked, rules, wanted):
        console.print(text, markup=False)


def _replay(options: argparse.Namespace) -> int:
    from roundelay.acoustic import TRACE, make_job
    from roundelay.core.configure import build, read_yaml
    from roundelay.recipes.recipe import Recipe
    from roundelay.runtime.replay import replay

    if not (options.exp / "recipe.yaml").is_file():
        raise UserError(f"{options.exp}: not a run directory (no recipe.yaml). Give the --exp of a `train --record`.")
    recipe = build(Recipe, read_yaml(options.exp / "recipe.yaml"))
    found = replay(options.exp / TRACE, make_job(recipe).cluster, Bar())
    done = f"{found.minibatches:,} minibatches, {found.events:,} events in {found.commands} stretches"
    if found.difference:
        console.print(f"{options.exp}: differs after {done}.\nThe first difference: {found.difference}", markup=False)
        return 1
    console.print(f"{options.exp}: {done}, repeated to the same weights, bit for bit.", markup=False)
    return 0


# simulate, launch, report, demo ---------------------------------------------------------------------------------------


def _stability(options: argparse.Namespace) -> None:
    from roundelay.compare.grid import parse_learners
    from roundelay.stability import ORDERS, stability, table

    names = ORDERS if options.strategy is COMPARED else options.strategy
    learners = options.stability or str(options.learners or "4,8,16")
    edges = stability(names, parse_learners(learners, "--stability"), options.jitter, options.seed)
    print_table(*table(edges))


def _simulate(options: argparse.Namespace) -> None:
    if options.published:
        return _published()
    if options.calibrate:
        return _calibrate(options)
    if options.stability is not None:
        return _stability(options)
    from roundelay.acoustic import parse_straggler
    from roundelay.runtime.sim.cluster import load_cluster
    from roundelay.runtime.sim.cost import CostModel
    from roundelay.simulate.scenario import Scenario, simulate

    cluster = load_cluster(options.cluster) if options.cluster else None
    learners = options.learners or (cluster.learners if cluster else DEFAULT_LEARNERS)
    scenario = Scenario(
        learners=learners, rounds=options.rounds, frames=options.frames, epochs=options.epochs,
        learning_rate=options.learning_rate, seed=options.seed,
        stragglers=tuple(parse_straggler(text) for text in options.straggler or ()),
        cost=CostModel(
            gradient=options.gradient, exchange=options.exchange, allreduce=options.allreduce, jitter=options.jitter,
            cluster=cluster, together=options.together,
        ),
        timing_only=options.timing_only, model_bytes=options.model_bytes,
    )  # fmt: skip
    found = simulate(scenario, options.strategy, options.exp)
    columns = ["strategy", "virtual s", "speedup", "minibatches", "staleness", "largest"]
    columns += ["events", "events/s"] if options.timing_only else ["consensus", "loss"]
    rows = []
    for s in found:
        row = [s.label, f"{s.virtual_seconds:.2f}", f"{s.speedup:.2f}", f"{s.fewest}-{s.most}"]
        row += [f"{s.staleness_mean:.1f}", f"{s.staleness_largest}"]
        if options.timing_only:
            row += [f"{s.events:,}", f"{s.events / s.wall_seconds:,.0f}"] if s.wall_seconds else ["", ""]
        else:
            row += [f"{s.consensus_distance:.4f}", f"{s.loss:.4f}"]
        rows.append(tuple(row))
    print_table(columns, rows)
    for s in found:
        if s.died or s.lost:
            note = s.died or f"{s.label} went on after {s.lost} death{'s' * (s.lost > 1)}"
            console.print(note, markup=False)


def _published() -> None:
    from roundelay.simulate.published import compare, errors

    compared = compare()
    rows = [
        (
            c.row.network, c.row.strategy, f"{c.row.minibatch}", f"{c.row.gpus}", f"{c.row.period}", c.row.tables,
            c.row.use, f"{c.row.speedup:.2f}", f"{c.speedup:.2f}", f"{round(100 * c.error, 1) + 0:+.1f} %",
        )
        for c in compared
    ]  # fmt: skip
    print_table(
        ["network", "strategy", "minibatch", "GPUs", "period", "tables", "use", "published", "model", "error"], rows
    )
    median, largest = errors(compared)
    predicted = sum(c.row.use == "predicted" for c in compared)
    console.print(
        f"{predicted} predicted rows: median error {100 * median:.1f} %, largest {100 * largest:.1f} %. "
        "Rows set aside are of table 2, which does not print the number of GPUs (4 assumed).",
        markup=False,
    )


def _calibrate(options: argparse.Namespace) -> None:
    from roundelay.simulate.calibrate import calibrate

    costs, lines = calibrate(options.calibrate)
    milliseconds = [
        (
            run.name, f"{run.learners}", f"{run.frames:.0f}", f"{1e3 * run.gradient:.2f}", f"{1e3 * run.update:.2f}",
            "" if run.exchange is None else f"{1e3 * run.exchange:.2f}",
            "" if run.mean is None else f"{1e3 * run.mean:.2f}",
        )
        for run in costs.runs
    ]  # fmt: skip
    console.print("Measured, in milliseconds:")
    print_table(["run", "learners", "frames", "gradient", "update", "exchange", "mean"], milliseconds)
    rows = []
    for line in lines:
        row = [line.label, f"{line.learners}", "" if line.measured is None else f"{line.measured:,.0f}"]
        for speed, error in ((line.own, line.own_error), (line.frames_per_second, line.error)):
            row += ["" if speed is None else f"{speed:,.0f}", "" if error is None else f"{100 * error:+.1f} %"]
        rows.append(tuple(row))
    console.print(
        "\nFrames per second, as measured, and as predicted from the run's own costs and from all other runs:"
    )
    print_table(["strategy", "learners", "measured", "own", "error", "others", "error"], rows)
    for what, errors in (
        ("its own costs", [abs(line.own_error) for line in lines if line.own_error is not None]),
        ("all other runs", [abs(line.error) for line in lines if line.error is not None]),
    ):
        if errors:
            console.print(
                f"From {what}: {len(errors)} runs, mean error {100 * sum(errors) / len(errors):.1f} %, "
                f"largest {100 * max(errors):.1f} %",
                markup=False,
            )


def _compare(options: argparse.Namespace) -> int:
    from roundelay.compare.grid import parse_learners, plan
    from roundelay.compare.running import run_grid
    from roundelay.compare.summary import summarise
    from roundelay.training import Interrupt

    strategies = [text for text in options.strategies if not _is_override(text)]
    overrides = [*options.overrides, *(text for text in options.strategies if _is_override(text))]
    overrides += [f"training.runtime={options.runtime}"] if options.runtime else []
    learners, stragglers = parse_learners(options.learners), options.straggler or ()
    grid = plan(options.recipe, overrides, strategies, learners, options.seeds, stragglers, options.exp)
    console.print(f"{len(grid.cells)} trainings in {grid.folder}{grid.about_time}", markup=False)
    interrupt = Interrupt()
    with _ctrl_c(interrupt):
        outcomes = run_grid(
            grid, not options.no_decode, Bar(quiet=True), lambda line: console.print(line, markup=False), interrupt
        )
    compared = summarise(grid, outcomes, options.target_loss, console.width if console.is_terminal else 200)
    console.print(f"\n{compared.table}\n\n{compared.files}", markup=False)
    for failure in compared.failed:
        complain(failure)
    if interrupt.asked:
        complain(f"interrupted; everything so far is in {grid.folder}. The same command goes on from there.")
        return 130
    return 1 if compared.failed else 0


def _is_override(text: str) -> bool:
    """`section.key=value` that stands right behind the strategies: none of them has a dot before its first `=`."""
    return "." in text.partition("=")[0] and "=" in text


def _launch(options: argparse.Namespace) -> int:
    from roundelay.runtime.procs.launch import launch

    return launch(options.learners, options.command, complain)


def _report(options: argparse.Namespace) -> None:
    from roundelay.report import load_runs, text_table, write_report

    console.print(text_table(load_runs(options.exp), console.width, options.target_loss), markup=False)
    page = write_report(options.exp, options.out, options.target_loss)
    console.print(f"page written to {page}", markup=False)


def _doctor(options: argparse.Namespace) -> int:
    from roundelay.runtime.doctor.consult import consult, table

    report = consult(
        hosts=options.hosts, listen=options.listen, learners=options.learners, parameters=options.parameters,
        folder=options.exp, patience=options.patience, say=complain,
    )  # fmt: skip
    if report is None:
        return 0
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
        return 0 if report.well else 2
    for name, findings in (*report.hosts.items(), ("between hosts", report.between)):
        if findings:
            console.print(f"{name}:", markup=False)
        for finding in findings:
            mark = {"good": "  ok    ", "note": "  note  ", "bad": "  BAD   "}[finding.verdict.value]
            console.print(f"{mark}{finding.about}: {finding.found}", markup=False)
            if finding.change:
                console.print(f"        -> {finding.change}", markup=False)
    columns, rows = table(report)
    if rows:
        print_table(columns, rows, left=2)
    console.print("Nothing here would keep a run from working." if report.well else "Change what is BAD first.")
    return 0 if report.well else 2


def _status(options: argparse.Namespace) -> int:
    from roundelay.report.status import Life, headline, host_rows, learner_rows, read_status
    from roundelay.runtime.clocks import pause, unix_clock

    while True:
        found = read_status(options.exp, unix_clock())
        if options.watch is not None and console.is_terminal:
            console.clear()
        if options.json:
            print(json.dumps(found.to_json()), flush=True)
        else:
            for line in headline(found):
                console.print(line, markup=False)
            for columns, rows in (host_rows(found), learner_rows(found)):
                if rows:
                    print_table(columns, rows)
        if options.watch is None or found.life is not Life.RUNNING:
            return 0 if found.life.well else 1
        pause(options.watch)


def _demo(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    runs = {"sgd-1": ["sgd", 1], "adpsgd-random-ring-4": ["adpsgd:random-ring", DEFAULT_LEARNERS]}
    paths = [f"corpus={folder / 'data'}", f"alignment={folder / 'alignment'}"]
    steps: list[list[str]] = [
        ["prepare", "demo", "--data", str(folder / "data")],
        ["align", "demo", *paths],
        *(
            [
                "train",
                "demo",
                *paths,
                "--exp",
                str(folder / name),
                "--strategy",
                str(strategy),
                "--learners",
                str(learners),
            ]
            for name, (strategy, learners) in runs.items()
        ),
        ["decode", *(str(folder / name) for name in runs)],
        ["report", *(str(folder / name) for name in runs), "--out", str(folder / "report.html")],
    ]
    for step in steps:
        console.print(f"\n$ roundelay {' '.join(step)}", markup=False)
        if code := main(step):
            return code
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand anywhere, also after flags, where argparse alone would not know them."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        if not hasattr(options, "overrides") or any(text.startswith("-") or "=" not in text for text in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.overrides = [*options.overrides, *rest]
    return options


# the parser -----------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundelay", description="Train acoustic models on many learners, from recorded speech to word error rate."
    )
    parser.add_argument("--version", action="version", version=f"roundelay {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    _add_prepare(command("prepare", _prepare, "check a corpus, read its lexicon, compute its features"))
    sub = command("features", _features, "give a prepared corpus other features, or copies at other speeds")
    sub.add_argument("data", type=Path, help="the prepared corpus")
    sub.add_argument("--on-bad-audio", choices=["error", "skip"], default="error", help="and missing matrices")
    _add_features(sub)
    _add_import(command("import-alignment", _import_alignment, "take the alignment that Kaldi or MFA made"))
    sub = command("export-alignment", _export_alignment, "write an alignment as Kaldi or Praat read it")
    sub.add_argument("kind", choices=["kaldi", "textgrid"])
    sub.add_argument("alignment", type=Path, help="the folder that `roundelay align` wrote")
    sub.add_argument("--corpus", type=Path, required=True, help="the prepared corpus")
    sub.add_argument("--out", type=Path, required=True, help="where to write")
    sub = command(
        "export", _export, "write a prepared corpus for others, as Kaldi data directories or Lhotse manifests"
    )
    sub.add_argument("format", choices=["kaldi", "lhotse"])
    sub.add_argument("data", type=Path, metavar="CORPUS", help="the folder that `roundelay prepare` wrote")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    sub.add_argument("--split", action="append", metavar="NAME", help="only this one (may be repeated; default: all)")
    sub.add_argument("--features", action="store_true", help="kaldi: also feats.scp and cmvn.scp with their archives")
    sub = command("align", _align, "train hidden Markov models from a flat start and label every frame")
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    sub.add_argument("overrides", nargs="*", help="section.key=value")
    _add_realign(command("realign", _realign, "align again with trained networks, to train the next ones on"))
    _add_train(command("train", _train, "train a network with one of the strategies, or resume a training"))
    sub = command("decode", _decode, "recognise the held-out splits with trained models, and score them")
    sub.add_argument("exp", nargs="+", type=Path, help="run directories")
    sub.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="decode.KEY=VALUE", help="override the run's recipe"
    )
    sub.add_argument(
        "--with", dest="others", nargs="+", default=[], metavar="EXP[:WEIGHT]",
        help="decode the weighted mean of its log-likelihoods and those of the run, which has weight 1",
    )  # fmt: skip
    sub.add_argument("--out", type=Path, metavar="DIR", help="where results go (default: into the run directory)")
    _add_score(command("score", _score, "score again what was decoded, or any trn, stm and ctm files"))
    sub = command("replay", _replay, "repeat a recorded training in one process, event by event, bit for bit")
    sub.add_argument("exp", type=Path, help="the run directory of a `train --record`")
    sub = command("launch", _launch, "start a script as several learners on this host, for roundelay.attach")
    sub.add_argument("-n", "--learners", type=int, required=True, help="how many")
    sub.add_argument("command", nargs=argparse.REMAINDER, help="a Python script, or any command, and its arguments")
    _add_simulate(command("simulate", _simulate, "compare strategies on a virtual cluster, in virtual seconds"))
    _add_compare(command("compare", _compare, "train a grid of strategies, or go on with it, and print their table"))
    sub = command("report", _report, "write one self-contained HTML page about runs, and print their table")
    sub.add_argument("exp", nargs="+", type=Path, help="run directories")
    sub.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    _add_target(sub)
    _add_doctor(command("doctor", _doctor, "examine this host, or all hosts of a run, and say what to change"))
    _add_status(command("status", _status, "show what a run is doing: learners, hosts, speed, what is lost"))
    sub = command(
        "demo", _demo, "synthesise a small corpus and run the whole path on it, with one learner and with four"
    )
    sub.add_argument("--folder", type=Path, default=Path("demo"), help="where everything goes (default: demo)")
    return parser


def _add_doctor(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--hosts", nargs="+", metavar="ADDRESS:PORT", help="of hosts where `roundelay doctor --listen` waits already"
    )
    sub.add_argument(
        "--listen", metavar="ADDRESS[:PORT]",
        help="let another host's doctor come here; with --hosts, or variables of torchrun: where to be reached",
    )  # fmt: skip
    sub.add_argument("--learners", type=int, help="on each host (default: LOCAL_WORLD_SIZE, or one for each core)")
    sub.add_argument("--parameters", type=float, default=12.5e6, help="of the model (default: 12.5e6)")
    sub.add_argument("--exp", type=Path, default=Path("exp"), help="where run directories go (default: exp)")
    sub.add_argument(
        "--patience", type=float, metavar="SECONDS",
        help="to wait for other hosts (default: 30; with --listen alone 600)",
    )  # fmt: skip
    sub.add_argument("--json", action="store_true", help="one JSON object instead, for programs")


def _add_status(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("exp", type=Path, help="the run directory")
    sub.add_argument(
        "--watch", nargs="?", type=float, const=5.0, metavar="SECONDS", help="again and again (default: every 5 s)"
    )
    sub.add_argument("--json", action="store_true", help="one JSON object instead, for programs")


def _add_prepare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "corpus",
        choices=["librispeech", "mini-librispeech", "fsdd", "an4", "switchboard", "kaldi", "lhotse", "demo"],
    )
    sub.add_argument("--source", type=Path, help="the folder that holds the corpus (with --download: downloads/CORPUS)")
    sub.add_argument("--download", action="store_true", help="load what is free and missing into the source first")
    sub.add_argument(
        "--also", action="append", default=[], type=Path, metavar="DIR", help="switchboard: another folder with parts"
    )
    sub.add_argument("--data", type=Path, help="where to put the prepared corpus (default: data/CORPUS)")
    sub.add_argument("--lexicon", type=Path, help="pronunciation dictionary, CMU format")
    sub.add_argument(
        "--split", action="append", metavar="NAME=FOLDER",
        help="kaldi: data directories inside the source; lhotse: parts of the manifests; librispeech: parts, a split "
        "may be named several times",
    )  # fmt: skip
    sub.add_argument(
        "--vocabulary", type=Path, metavar="TEXT",
        help="recognise the words of this text or list and those trained on; other words of held-out speech are errors",
    )  # fmt: skip
    sub.add_argument("--vocabulary-size", type=int, default=0, metavar="N", help="its N most frequent words only")
    sub.add_argument(
        "--on-bad-audio", choices=["error", "skip"], default="error", help="missing, truncated, wrong rate"
    )
    sub.add_argument(
        "--on-missing-words", choices=["error", "skip", "map", "guess"], default="error",
        help="not in the lexicon; guess: pronounced by their spelling, as learned from the lexicon",
    )  # fmt: skip
    sub.add_argument(
        "--lexicon-case", choices=["keep", "upper", "lower"],
        help="kaldi: of the dictionary's words (default: as in the transcripts, if these are all in one)",
    )  # fmt: skip
    sub.add_argument("--strip-stress", action="store_true", help="kaldi: read AH0 and AH1 as AH")
    sub.add_argument("--map-to", metavar="WORD", help="with --on-missing-words map: the word that stands for them")
    sub.add_argument(
        "--max-bad-share", type=float, default=0.1, metavar="SHARE",
        help="of a split's utterances that may be left out; more stop the command (default: 0.1)",
    )  # fmt: skip
    sub.add_argument("--allow-pipes", action="store_true", help="kaldi: run the commands in wav.scp")
    sub.add_argument("--pipe-seconds", type=float, default=300, help="that one of them may take (default: 300)")
    sub.add_argument("--use-feats", action="store_true", help="kaldi: features of feats.scp, though there is audio")
    sub.add_argument("--frame-shift-ms", type=float, help="kaldi: of feats.scp (default: the file frame_shift, or 10)")
    sub.add_argument("--seed", type=int, default=0, help="demo: of the synthesised corpus")
    _add_features(sub)


def _add_features(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--features", type=Path, metavar="YAML", help="what features are made of (docs/features.md)")
    sub.add_argument("--bins", type=int, help="of the filterbank (default: 40)")
    sub.add_argument(
        "--speed", type=float, nargs="+", default=[], metavar="S", help="add training copies played so fast: 0.9 1.1"
    )
    sub.add_argument("--workers", type=int, help="processes (default: as many as pay)")


def _add_import(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("kind", choices=["kaldi", "textgrid"])
    sub.add_argument("--corpus", type=Path, required=True, help="the prepared corpus")
    sub.add_argument("--out", type=Path, required=True, help="the alignment's folder")
    sub.add_argument("--ali", type=Path, action="append", default=[], help="kaldi: a folder with ali.*.gz; repeatable")
    sub.add_argument("--pdfs", type=Path, action="append", default=[], help="kaldi: instead, what ali-to-pdf printed")
    sub.add_argument("--model", type=Path, help="kaldi: final.mdl (default: in the first --ali)")
    sub.add_argument("--tree", type=Path, help="kaldi: the tree (default: in the first --ali)")
    sub.add_argument("--phones", type=Path, help="kaldi: phones.txt (default: in the first --ali)")
    sub.add_argument("--grids", type=Path, help="textgrid: the folder of ID.TextGrid files")
    sub.add_argument(
        "--tying", help="kaldi, monophones, grow, or an alignment's folder (default: kaldi; monophones for TextGrids)"
    )
    sub.add_argument("--tied-states", type=int, default=500, help="of --tying grow (default: 500)")
    sub.add_argument(
        "--shares", type=float, nargs=3, default=[1.0, 1.0, 1.0], help="textgrid: of a phone, for its three states"
    )
    sub.add_argument("--tolerance", type=int, default=0, help="frames that alignment and features may differ by")
    sub.add_argument("--failure-share", type=float, default=0.1, help="of utterances that may be left out")


def _add_realign(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("exp", nargs="+", type=Path, help="run directories; the log-likelihoods of several are averaged")
    sub.add_argument("--out", type=Path, required=True, help="the folder of the new alignment")
    sub.add_argument("--scale", type=float, default=0.5, help="of the log-likelihoods (default: 0.5)")
    sub.add_argument("--workers", type=int, default=0, help="processes (default: as many as cores)")


def _add_train(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    sub.add_argument("overrides", nargs="*", help="section.key=value, for example schedule.max_epochs=5")
    sub.add_argument("--exp", type=Path, required=True, help="the run directory; resumes what is in it")
    sub.add_argument("--strategy", help="NAME[:TOPOLOGY][,KEY=VALUE...]; docs/strategies has a page for each")
    sub.add_argument("--learners", type=int, help="how many; a run may be resumed with another number")
    sub.add_argument("--runtime", choices=["procs", "sim"])
    sub.add_argument("--seed", type=int)
    sub.add_argument("--resume", action="store_true", help="only go on with what is there; never begin a run")
    sub.add_argument("--on-death", choices=["replace", "go-on", "shrink", "stop"], help="what a learner's death means")
    sub.add_argument("--record", action="store_true", help="take a trace for `roundelay replay`")
    sub.add_argument("--listen", metavar="ADDRESS[:PORT]", help="of this host, for the others (docs/hosts.md)")
    sub.add_argument(
        "--host-patience", type=float, metavar="S", help="silence after which a host is dead (default: 10)"
    )
    sub.add_argument("--wire", choices=["fp32", "bf16"], help="of exchanges between hosts (default: fp32)")
    sub.add_argument("--fragments", type=int, metavar="K", help="an exchange between hosts carries 1/K of the row")
    sub.add_argument("--straggler", action="append", metavar="RANK:3x|RANK:+0.4", help="slow a learner down on purpose")


def _add_score(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("exp", nargs="*", type=Path, help="run directories")
    sub.add_argument("--ref", type=Path, help="reference, trn format")
    sub.add_argument("--hyp", type=Path, help="hypotheses, trn format")
    sub.add_argument("--stm", type=Path, help="reference in segments with times, stm format")
    sub.add_argument("--ctm", type=Path, help="recognised words with times, ctm format")
    sub.add_argument("--glm", type=Path, help="mapping rules for both sides; implies --marks, and splits at hyphens")
    sub.add_argument("--keep-hyphens", action="store_true", help="with --glm: hyphenated words stay one word")
    sub.add_argument(
        "--marks", action="store_true", help="read { a / b } as alternatives, (word) as optional, wor- as a fragment"
    )
    sub.add_argument("--ignore-case", action="store_true", help="upper and lower case are the same")
    sub.add_argument("--sclite-costs", action="store_true", help="align with sclite's costs, not with fewest errors")
    sub.add_argument(
        "--missing-as-empty", action="store_true", help="count utterances without hypothesis as all deleted"
    )
    sub.add_argument("--interval", action="store_true", help="95 %% bootstrap interval of the word error rate")
    sub.add_argument(
        "--over", choices=["utterances", "speakers"], default="utterances",
        help="what the bootstrap of --interval and --compare draws (default: utterances)",
    )  # fmt: skip
    sub.add_argument("--compare", type=Path, metavar="RUN", help="another system: a run directory, or hypotheses")
    sub.add_argument("--per-speaker", action="store_true", help="word errors of each speaker")
    sub.add_argument("--subsets", action="store_true", help="word errors of each part of the test set")
    sub.add_argument("--table", action="store_true", help="the table that sclite prints")
    sub.add_argument("--confusions", type=int, default=0, metavar="N", help="the N most frequent errors of each kind")
    sub.add_argument("--errors", action="store_true", help="also print every error in its place")


def _add_compare(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", help="a YAML file, or the name of a packaged recipe")
    sub.add_argument("overrides", nargs="*", help="section.key=value, for every training")
    sub.add_argument(
        "--strategies", nargs="+", required=True, metavar="NAME[:TOPOLOGY][,KEY=VALUE]",
        help="beside the baseline: for example ssgd adpsgd:random-ring bmuf,period=20,nesterov=true",
    )  # fmt: skip
    sub.add_argument(
        "--learners", default=f"1,{DEFAULT_LEARNERS}", help="numbers with commas; 1 is the baseline, sgd, always there"
    )
    sub.add_argument("--seeds", type=int, default=3, help="how many, from the recipe's on (default: 3)")
    sub.add_argument(
        "--straggler", action="append", metavar="RANK:3x|RANK:+0.4", help="train everything also with this one slow"
    )
    sub.add_argument("--runtime", choices=["procs", "sim"])
    sub.add_argument("--exp", type=Path, metavar="DIR", help="where all runs go (default: exp/RECIPE/compare)")
    sub.add_argument("--no-decode", action="store_true", help="losses and seconds only, no word error rates")
    _add_target(sub)


def _add_target(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--target-loss",
        type=float,
        metavar="NATS",
        help="held-out loss to race to (default: one that all runs reached)",
    )


def _add_simulate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("cluster", nargs="?", type=Path, help="a virtual cluster, YAML (docs/simulator.md)")
    sub.add_argument(
        "--strategy", nargs="+", default=COMPARED,
        metavar="NAME[:TOPOLOGY][,KEY=VALUE]",
    )  # fmt: skip
    sub.add_argument("--learners", type=int, help="default: the cluster's, or 4")
    sub.add_argument("--timing-only", action="store_true", help="compute nothing: times, staleness, events a second")
    sub.add_argument("--model-bytes", type=float, help="size of a model on the wire, where the cluster does not say")
    sub.add_argument("--frames", type=int, default=32, help="of a learner's minibatch (default: 32)")
    sub.add_argument("--epochs", type=int, default=1, help="of --rounds each (default: 1)")
    sub.add_argument(
        "--exp", type=Path, help="leave a run directory for `roundelay report`; one each in it for several"
    )
    sub.add_argument(
        "--together",
        action=argparse.BooleanOptionalAction,
        help="gradients of many learners in one call, or one by one",
    )
    sub.add_argument("--published", choices=["li2017"], help="check the cost model against published speedups")
    sub.add_argument("--calibrate", nargs="+", type=Path, metavar="EXP", help="take costs from recorded runs")
    sub.add_argument(
        "--stability", nargs="?", const="", metavar="L,L,...",
        help="print instead the largest stable rate x curvature, for so many learners (default: --learners, or 4,8,16)",
    )  # fmt: skip
    sub.add_argument("--rounds", type=int, default=200, help="minibatches per learner, on average")
    sub.add_argument("--learning-rate", type=float, default=0.1)
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--straggler", action="append", metavar="RANK:10x|RANK:+0.4")
    defaults = {"gradient": 0.1, "exchange": 0.005, "allreduce": 0.03, "jitter": 0.0}
    texts = {
        "gradient": "seconds per minibatch",
        "exchange": "seconds per pair exchange",
        "allreduce": "seconds per allreduce of two learners",
        "jitter": "sigma of log-normal gradient times",
    }
    for name, value in defaults.items():
        sub.add_argument(f"--{name}", type=float, default=value, help=f"{texts[name]} (default: {value})")


if __name__ == "__main__":
    sys.exit(main())
