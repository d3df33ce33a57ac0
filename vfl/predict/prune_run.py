"""A new run whose parties have smaller models than a finished one's: pruned and refitted, and not trained.

The head stays as it was, and so do costs and rows of the rounds, except the last row: it has the smaller models and
their test, and the refit's multiply-accumulates are counted as a training's are.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from vfl.base.macs import count_parameters
from vfl.base.process_state import standard_state
from vfl.config import ConfigError, ExperimentConfig
from vfl.config.schedules import schedule_of, value_at
from vfl.core.local import InProcess
from vfl.core.server import HeadServer
from vfl.data.source import SERVER
from vfl.predict.prune_settings import pruned_config
from vfl.predict.trained_run import check_whole_images, load_run_with_data, read_checkpoint
from vfl.runs.atomic import check_new_folder, follow_links, write_atomically
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import Metrics, TrainingLoop
from vfl.runs.run_folder import begin_run, only_process_in, write_summary
from vfl.runs.stored_run import Run


@standard_state()
def prune(run: Run, settings: Mapping[str, object], *, run_dir: str | Path | None = None) -> Run:
    """Prune the parties' models of a finished run, and return the new run.

    Args:
        run: a finished run of one process, whose data is there: for the refit's rows and the test.
        settings: ``alpha``, and those of ``lightweighting.pruning`` as ``pruning.round_to``; ``pruning.refit`` is true
            unless they say otherwise.
        run_dir: folder of the new run; by default beside the run's, with ``-pruned`` at its name's end.

    Raises ValueError, one line, for a run that cannot be pruned, settings that remove nothing, or a folder that exists.
    """
    folder = follow_links(Path(run_dir)) if run_dir else run.folder.with_name(f"{run.folder.name}-pruned")
    check_new_folder(folder)
    rounds, config = _checked_rounds(run), pruned_config(run, settings)
    built = load_run_with_data(run, config=config)
    _prune(built, config)
    built.server.evaluation.forget()
    rows, summary = run.rows_and_summary()
    (*rows, last) = rows or ({"round": rounds - 1},)
    saved = {tag: each for tag, each in built.server.ledger.round_metrics().items() if tag.startswith("savings")}
    rows.append(last | built.server.evaluate() | built.server.reports.metrics() | saved)
    begin_run(folder, config, "--out")
    with only_process_in(folder):
        _save(folder, config, built.server, rounds, rows, summary["wall_time_s"])
    return Run(folder)


def _checked_rounds(run: Run) -> int:
    """Return the number of rounds of a run that can be pruned. Raises ConfigError for another one."""
    if run.config.data.dataset.kind == "objects":
        raise ConfigError(
            f"{run.folder}: its models and rows are a program's own; prune them in a training, by vfl.fit: "
            "training.start_from with lightweighting.alpha and lightweighting.pruning.refit=true"
        )
    trained = read_checkpoint(run)
    if not run.finished or run.summary["rounds"] != trained.rounds:  # resumed for more rounds, which are under way
        raise ConfigError(f"{run.folder}: is not finished; train it to its end: lvfl train --resume")
    check_whole_images(run, trained.sections[SERVER].get("reports", {}))
    if apart := [name for name in run.vertical.parties if "model" not in trained.sections[name]]:
        raise ConfigError(
            f"{run.folder}: {apart[0]} is a process of its own and keeps its model; prune it in a training: "
            "training.start_from with lightweighting.alpha and lightweighting.pruning.refit=true"
        )
    return trained.rounds


def _prune(built: InProcess, config: ExperimentConfig) -> None:
    """Prune every party to its last alpha, and book what it took and left."""
    server, removed, asked = built.server, False, 0.0
    for party in built.parties:
        party.alpha = value_at(schedule_of(config.lightweighting.alpha, party.name), config.training.rounds - 1)
        asked = max(asked, party.alpha)
        pruned = party.prune()
        removed |= pruned
        party.evaluated.forget()
        smaller = {"alpha": party.pruner.alpha_max, "macs_per_sample": party.macs}
        smaller |= {"parameters": count_parameters(party.model)}
        if pruned:  # else these stay as its last round had them
            smaller |= {"psi": party.meter.psi, "refit_macs": party.meter.refit_macs or None}
        server.reports.last[party.name] = server.reports.last[party.name].model_copy(update=smaller)
        server.ledger.costs[party.name].train_macs += party.meter.refit_macs
    if asked and not removed:
        raise ConfigError(f"lightweighting.alpha: {asked:g} removes nothing that is left; name a larger one")


def _save(
    folder: Path, config: ExperimentConfig, server: HeadServer, rounds: int, rows: list[Metrics], wall_time_s: float
) -> None:
    """Write checkpoint, rows and summary, as a training's end does."""
    store = CheckpointStore(folder / "checkpoints")
    loop = TrainingLoop(server, rounds, checkpoints=store, evaluated=config.data.evaluated)
    loop.next_round, loop.wall_time_s = rounds, wall_time_s
    for row in rows:
        loop.last_metrics |= row
    loop.save()
    write_atomically(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_summary(folder, loop.summary())
