"""Status of a run from the files of its folder, on any side, during the training or afterwards. Needs no PyTorch.

A run's folder shows the run, a party's own folder that party, and ``processes`` below a run's folder both.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from vfl.base.errors import plain
from vfl.config import ConfigError
from vfl.config.files import read_yaml
from vfl.parties.network.action_log import AWAITED, ENDED
from vfl.parties.network.action_log import NAME as ACTIONS
from vfl.runs.run_folder import PROCESSES, Row, read_run_id, whole_rows
from vfl.runs.stored_run import Run

Status = dict[str, Any]
"""Output of ``lvfl status --json``; `status_of` sets its keys."""
LONGEST = 1000
"""Most characters of a line."""
HERE = ("joined", "saved")
"""Events after which a party is connected."""


def status_of(run_dir: Path) -> Status:
    """Return the status of the run, or of the party's part of it, in a folder.

    ``state`` is running, ended (``exit_code`` and ``reason`` say how) or stopped (killed, or before codes were
    recorded); times are UTC, ISO 8601; bytes are those of training, since round 0. Raises ConfigError for a folder
    without a run.
    """
    try:
        stored = Run(run_dir)
    except ConfigError as error:
        raise ConfigError(f"RUN: {error}") from None
    # As YAML, not as an experiment: checking that asks the data source for its owners, which takes PyTorch.
    (experiment, rounds), rows, events = _experiment(run_dir / "config.yaml"), _rows(run_dir), _events(run_dir)
    running = _is_held(run_dir)
    ended = events[-1] if events and events[-1]["event"] == ENDED else None
    finished = stored.finished and stored.summary.get("rounds", 0) >= len(rows)
    status: Status = {
        "folder": str(run_dir),
        "name": experiment,
        "run": read_run_id(run_dir),
        "state": "running" if running else "ended" if ended or finished else "stopped",
        "exit_code": None if running else ended["code"] if ended else 0 if finished else None,
        "reason": "" if running or not ended else ended["detail"],
        "rounds_done": rows[-1]["round"] + 1 if rows else 0,
        "rounds": rounds,
        "test": _last(rows, "/test"),
        "last_round_at": _written(run_dir / "metrics.jsonl") if rows else None,
        "uplink_bytes": _total(rows, "uplink_bytes/"),
        "downlink_bytes": _total(rows, "downlink_bytes/"),
        "parties": {name: _party(name, rows, events, running=running) for name in _names(rows, events)},
    }
    below = run_dir / PROCESSES
    if below.is_dir():
        folders = sorted(path.parent for path in below.glob("*/config.yaml"))
        status[PROCESSES] = {folder.name: status_of(folder) for folder in folders}
    return status


def _party(name: str, rows: list[Row], events: list[dict[str, Any]], *, running: bool) -> Status:
    """Return this side's information about a peer, or in its own folder about a party itself."""
    own = [each for each in events if each["peer"] == name and each["event"] != "refused"]
    seen = [each["time"] for each in own if each["event"] != AWAITED]
    since = {
        each["event"] for each in own[1 + max([-1, *(n for n, each in enumerate(own) if each["event"] in HERE)]) :]
    }
    state = AWAITED if AWAITED in since else "lost" if since or not own else "connected"
    return {
        "state": "" if not own else state if running else "gone",
        "last_seen": seen[-1] if seen else None,
        "rounds": sum(f"uplink_bytes/{name}" in row for row in rows),
        "uplink_bytes": _total(rows, f"uplink_bytes/{name}"),
        "downlink_bytes": _total(rows, f"downlink_bytes/{name}"),
    }


def lines_of(status: Mapping[str, Any]) -> list[str]:
    """Return the status as lines of text, in which nothing that lay in the folder is more than text."""
    how = status["state"] if status["exit_code"] is None else f"{status['state']} with exit code {status['exit_code']}"
    reason = f": {status['reason']}" if status["reason"] else ""
    run = f", run {status['run']}" if status["run"] else ""
    lines = [plain(f"{status['name']}: {how}{reason} ({status['folder']}{run})", LONGEST)]
    tests = "".join(f", {tag} {value:.4g}" for tag, value in status["test"].items())
    at = f", last at {status['last_round_at']}" if status["last_round_at"] else ""
    lines.append(plain(f"{status['rounds_done']} of {status['rounds']} rounds{at}{tests}", LONGEST))
    for name, party in status["parties"].items():
        seen = f", last seen {party['last_seen']}" if party["last_seen"] else ""
        state = party["state"] or "takes part"
        sent = f"{party['uplink_bytes']:,} B up, {party['downlink_bytes']:,} B down" if party["rounds"] else "no round"
        lines.append(f"  {plain(f'{name}: {state}{seen}; {sent}', LONGEST)}")
    for name, own in status.get(PROCESSES, {}).items():
        lines += [f"  at {plain(name)}: {lines_of(own)[0]}", f"    {lines_of(own)[1]}"]
    return lines


def _names(rows: list[Row], events: list[dict[str, Any]]) -> list[str]:
    prefix = "uplink_bytes/"
    known = [tag.removeprefix(prefix) for row in rows for tag in row if tag.startswith(prefix)]
    seen = [each["peer"] for each in events if each["peer"] and each["event"] != "refused"]
    return list(dict.fromkeys([*known, *seen]))


def _total(rows: list[Row], tag: str) -> int:
    """Return the sum of a tag over all rounds; if it ends with a slash, of all tags that begin with it."""
    fits = str.startswith if tag.endswith("/") else str.__eq__
    return int(sum(value for row in rows for each, value in row.items() if fits(each, tag) and math.isfinite(value)))


def _last(rows: list[Row], ending: str) -> Row:
    return {tag: value for row in rows for tag, value in row.items() if tag.endswith(ending)}


def _events(run_dir: Path) -> list[dict[str, Any]]:
    """Return the audit log's entries, without the damaged last line of a killed process."""
    path = run_dir / ACTIONS
    events: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and _is_event(cast(dict[str, Any], entry)):
            events.append(cast(dict[str, Any], entry))
    return events


def _is_event(entry: Mapping[str, Any]) -> bool:
    complete = all(isinstance(entry.get(key), str) for key in ("time", "event", "peer", "detail"))
    return complete and (entry["event"] != ENDED or isinstance(entry.get("code"), int))


def _experiment(path: Path) -> tuple[str, int]:
    """Return the name and the rounds of a run's configuration. Raises ConfigError for one that is none of a run."""
    config = read_yaml(path)
    name, training = config.get("name"), config.get("training")
    rounds = cast(dict[str, Any], training).get("rounds") if isinstance(training, dict) else None
    if not isinstance(name, str) or not isinstance(rounds, int):
        raise ConfigError(f"RUN: {path} is not a run's: no name or no rounds; name a folder that lvfl made")
    return name, rounds


def _rows(run_dir: Path) -> list[Row]:
    rows: list[dict[str, Any]] = [{**row} for row in whole_rows(run_dir)]
    return [{tag: value for tag, value in row.items() if isinstance(value, int | float)} for row in rows]


def _written(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _is_held(run_dir: Path) -> bool:
    """Return whether a process trains in the folder (``only_process_in``)."""
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of at once: a process may just begin
    except OSError:
        return True
    finally:
        os.close(folder)
    return False
