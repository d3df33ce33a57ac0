"""A served run is trained on in a copy of its folder, judged by its test metric, and then served as a new version.

RUN-next, beside RUN, is the copy. Its last checkpoints go into the served folder, the owners' first and the server's
last, which names the others'. Until that one is there the old version is served. Killed at any instant, the same
command goes on where it was.
"""

import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vfl.base.metrics import format_metric, points_lost, reached, title
from vfl.config import ConfigError
from vfl.config.files import load_stored_config, vertical
from vfl.config.prediction import PREDICTION
from vfl.config.serving import ServingConfig
from vfl.console import DONE
from vfl.parties.launch.local_launch import run_together, trained_by_processes
from vfl.predict.trained_run import whole_states
from vfl.runs.atomic import write_atomically
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run_folder import PROCESSES, private_files, read_secret
from vfl.runs.stored_run import Run

NOT_COPIED = shutil.ignore_patterns(".partial-*", "*.sqlite*", "predictions*", "export", "report")
"""Files of a served folder that a training does not need."""
TOLD_S = 10.0


def update(run: Run, settings: Sequence[str], most_points: float, console: Console) -> int:
    """Train on in a copy, and serve its model unless the test metric lost over ``most_points``; return the exit code.

    ``settings`` are those that a resumed training may change. Raises ConfigError for a run that processes of this
    machine have not trained, settings that train no further, and a model that is worse; RUN is as it was then.
    """
    trained_by_processes(run.folder)
    served, target = run.saved_rounds()[-1], run.folder.with_name(f"{run.folder.name}-next")
    config = vertical(load_stored_config(run.folder / "config.yaml", settings))
    if not target.exists():
        if config.training.rounds <= served:
            raise ConfigError(f"training.rounds: {served} are trained; name more, as training.rounds={2 * served}")
        partial = target.with_name(f".partial-{target.name}")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(run.folder, partial, ignore=NOT_COPIED)
        partial.rename(target)
    console.print(f"{run} goes on in {target}")
    if code := run_together(config, target, resume=True, console=console):
        return code
    copy = Run(target)
    whole_states(copy)  # every owner has its part, unharmed
    console.print(_judged(run, copy, most_points))
    _swap(run, copy, config.parties, max(2, config.checkpoint.keep))
    shutil.rmtree(target)
    return DONE


def _judged(run: Run, copy: Run, most_points: float) -> str:
    """Return a line about both models. Raises ConfigError if the copy's test metric lost more than ``most_points``."""
    metric = reached(copy.summary)[0]
    before, after = _tested(run, metric), _tested(copy, metric)
    line = f"test {title(metric)} {format_metric(metric, after)} after {copy.saved_rounds()[-1]} rounds, "
    line += f"{format_metric(metric, before)} after {run.saved_rounds()[-1]}"
    if (lost := points_lost(metric, after, before)) > most_points:
        raise ConfigError(
            f"--points: {line}: worse by {lost:.3g}, and {most_points:g} are accepted; {run} is served as it was, and "
            f"{copy.folder} has the new model: remove it, or name more --points"
        )
    return line


def _tested(run: Run, metric: str) -> float:
    """Return the test metric of the run's last checkpoint. Raises ConfigError if it has none."""
    last = run.checkpoints.load(run.saved_rounds()[-1])["loop"]["last_metrics"]
    if (value := last.get(f"{metric}/test")) is None:
        raise ConfigError(f"{run}: has no test {title(metric)} to judge by; give the run test rows: data.test_share")
    return value


def _swap(run: Run, copy: Run, owners: Sequence[str], keep: int) -> None:
    """Put the copy's last checkpoints into the served folder, the server's last, and then what shows its rounds."""
    last = copy.saved_rounds()[-1]
    known = {*run.saved_rounds(), last}  # else what interrupted updates left with an owner would count as its newest
    with private_files():
        for own in (*(Path(PROCESSES) / name for name in owners), Path()):
            new, store = (CheckpointStore(each / own / "checkpoints", keep) for each in (copy.folder, run.folder))
            store.adopt(new, last, known)
        for own in (*(Path(PROCESSES) / name for name in owners), Path()):
            for name in ("config.yaml", PREDICTION, "metrics.jsonl", "summary.json"):
                if (copy.folder / own / name).exists():
                    write_atomically(run.folder / own / name, (copy.folder / own / name).read_bytes())
            for events in (copy.folder / own).glob("events.*"):
                if not (run.folder / own / events.name).exists():
                    shutil.copy2(events, run.folder / own / events.name)


def tell_service(serving: ServingConfig) -> str:
    """Let the service of scores take the new version; return a line about what it said."""
    host, _, port = serving.listen.rpartition(":")
    address = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    secure = serving.certificate is not None
    ask = urllib.request.Request(f"{'https' if secure else 'http'}://{address}/v1/reload", b"", method="POST")
    if secret := read_secret(serving.token):
        ask.add_header("Authorization", f"Bearer {secret.decode().strip()}")
    trusted = ssl.create_default_context(cafile=serving.certificate) if secure else None
    try:
        with urllib.request.urlopen(ask, timeout=TOLD_S, context=trusted):
            return f"the service at {address} takes it before the next batch"
    except (OSError, urllib.error.HTTPError) as error:
        return f"the service at {address} was not told ({error}); it takes it by SIGHUP, or when it starts"
