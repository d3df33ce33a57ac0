"""Party processes predict the bits that one process predicts, with all of them, without one, and of other samples."""

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from predicted import predict_in_process
from refusals import refuses
from rich.console import Console
from shorthand import load_dataset, release

from vfl.base.errors import PeerLost, WhenAbsent
from vfl.parties.launch import local_launch
from vfl.parties.launch.local_launch import predict_together
from vfl.parties.launch.supervisor import Supervisor
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.open_run import SamplesWanted
from vfl.predict.predict import Prediction
from vfl.predict.trained_run import load_run_with_data, read_checkpoint
from vfl.runs.stored_run import Run

SCRIPTS = Path(__file__).parents[2] / "scripts"
GRID = {"partition": {"rows": 2, "columns": 2}}
SECTIONS = {
    "server": {"data": GRID, "training": {"labels": "server"}, "evaluation": {"sparsified": True}},
    "shared": {"data": GRID, "training": {"labels": "shared"}},
}


def serve(federation, *options: str) -> Path:
    """Start the server of a prediction; return where it will write."""
    for name in federation.names:
        federation.codes[name].clear()
        (federation.folder / f"{name}.log").unlink(missing_ok=True)
    out = federation.run_dir / "out.csv"
    out.unlink(missing_ok=True)
    argv = [str(SCRIPTS / "predict.py"), str(federation.run_dir), "--out", str(out)]
    federation.launch(SERVER, [*argv, "--listen", str(federation.folder / "server.yaml"), *options])
    return out


def table_of(federation, *options: str, without: tuple[str, ...] = ()) -> list[list[str]]:
    """Predict with all parties but some; return the table."""
    out = serve(federation, *options)
    present = [name for name in federation.names[1:] if name not in without]
    for name in present:
        federation.start(name)
    federation.finish()
    assert federation.codes == {name: [0] for name in (SERVER, *present)} | {name: [] for name in without}, (
        federation.logs()
    )
    return table(out)


def impatient(federation) -> str:
    """Write the configuration of a server that does not wait long; return its path."""
    path = federation.folder / "impatient.yaml"
    path.write_text("base: server.yaml\nnetwork: {wait_s: 20}\n")
    return str(path)


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def as_text(prediction: Prediction) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in prediction.rows()]


@pytest.fixture
def federation(trained_with) -> Iterator[Any]:
    """One that has trained."""
    trained = trained_with(**SECTIONS["server"])
    yield trained
    trained.close()


def test_a_mean_that_the_server_never_learned_is_refused(federation):
    serve(federation, "--absent", "party_2", "--when-absent", "mean")
    federation.finish()
    assert federation.codes[SERVER] == [2]
    assert federation.log(SERVER).startswith("error: --when-absent: the server has no mean embedding of party_2;")


@pytest.mark.parametrize("labels", ["server", release("shared")])
def test_five_processes_predict_the_bits_of_one(trained_with, labels: str):
    federation = trained_with(**SECTIONS[labels])
    rows = table_of(federation)
    expected = predict_in_process(Run(federation.run_dir), None, [], "refuse")
    assert rows == as_text(expected)
    summary = json.loads((federation.run_dir / "summary.json").read_text())
    assert expected.scores == {"accuracy": f"{summary['test_accuracy']:.2%}"}
    assert expected.labels_N is not None
    loss = F.nll_loss(expected.probabilities_NC.log(), expected.labels_N)
    assert float(loss) == pytest.approx(summary["test_loss"], rel=1e-5)  # as it was evaluated, sparsified or not
    assert f"accuracy {summary['test_accuracy']:.2%}" in federation.log(SERVER)
    assert "40 samples are predicted" in federation.log("party_1")


@pytest.mark.parametrize("when_absent", [release("zeros"), "mean"])
def test_without_a_party_that_was_not_started(federation, when_absent: WhenAbsent):
    table_of(federation)  # the server learns the means
    rows = table_of(federation, "--absent", "party_2", "--when-absent", when_absent, without=("party_2",))
    assert rows == as_text(predict_in_process(Run(federation.run_dir), None, ["party_2"], when_absent))
    assert f"accuracy without party_2 ({when_absent})" in federation.log(SERVER)


@pytest.mark.release
def test_a_party_that_stays_away_is_refused_or_stood_in_for(federation):
    soon = impatient(federation)
    out = serve(federation, "--listen", soon)
    federation.start("party_1")
    federation.finish()
    assert (federation.codes[SERVER], federation.codes["party_1"]) == ([3], [3]), federation.logs()
    assert "party_2, party_3, party_4 did not join within network.wait_s = 20 s" in federation.log(SERVER)
    assert not out.exists()
    rows = table_of(federation, "--listen", soon, "--when-absent", "zeros", without=("party_3",))
    assert rows == as_text(predict_in_process(Run(federation.run_dir), None, ["party_3"], "zeros"))


@pytest.mark.release
def test_a_party_that_dies_meanwhile_is_waited_for(federation):
    out = serve(federation)
    for name in federation.names[1:]:
        federation.start(name, *([("evaluates", 1, "SIGKILL")] if name == "party_4" else []))
    assert federation.wait("party_4") == -signal.SIGKILL
    federation.start("party_4")
    federation.finish()
    assert federation.codes == {name: [0] for name in federation.names} | {"party_4": [-signal.SIGKILL, 0]}
    assert "party_4 is lost: " in federation.log(SERVER)
    assert table(out) == as_text(predict_in_process(Run(federation.run_dir), None, [], "refuse"))


def test_who_is_stopped_leaves_at_once(federation):
    serve(federation)
    federation.start("party_1")
    federation.wait_for_line("party_1", "joined run")
    federation.signal("party_1", signal.SIGTERM)
    assert federation.wait("party_1") == 130
    federation.signal(SERVER, signal.SIGTERM)
    assert federation.wait(SERVER) == 130


@pytest.mark.parametrize("labelled", [True, release(False)])
def test_images_of_a_file_by_the_processes_of_this_machine(
    federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, labelled: bool
):
    whole = load_dataset("digits", None, train_samples=48, test_samples=40, seed=3).test
    order = np.arange(39, -1, -3)
    assert whole.labels is not None
    known: dict[str, Any] = {"labels": whole.labels.numpy()[order]} if labelled else {}
    np.savez(tmp_path / "some.npz", images=whole.features.numpy()[order], ids=whole.ids.numpy()[order], **known)
    started: list[Supervisor] = []
    monkeypatch.setattr(local_launch.Supervisor, "run", lambda self: started.append(self) or 0)
    out = tmp_path / "out.csv"
    console = Console(quiet=True)
    wanted = SamplesWanted(tmp_path / "some.npz", absent=["party_1"], when_absent="zeros")
    predict_together(federation.run_dir, wanted, out, console)
    (supervisor,) = started
    os.close(supervisor.lifeline)
    os.close(supervisor._held)
    commands = {SERVER: supervisor.serve} | supervisor.parties
    assert list(commands) == [SERVER, "party_2", "party_3", "party_4"]
    for name in commands:
        script, *arguments = commands[name]
        federation.launch(name, [str(SCRIPTS / f"{script}.py"), *arguments])
    federation.finish()
    expected = predict_in_process(Run(federation.run_dir), tmp_path / "some.npz", ["party_1"], "zeros")
    assert (expected.labels_N is not None) == labelled
    assert table(out) == as_text(expected)


def test_a_party_with_other_samples_is_refused(federation, tmp_path: Path):
    serve(federation)
    name = "party_1"
    samples = federation.folder / "samples" / "party_1.safetensors"
    assert samples.exists(), "written by the test before"
    federation.start(name, extra=("--samples", str(samples)))
    assert federation.wait(name) == 2
    assert "differ in ids of the test samples" in federation.log(name)
    federation.signal(SERVER, signal.SIGTERM)
    federation.finish()


def test_where_it_cannot_be_done_one_line_says_so(federation, tmp_path: Path):
    with pytest.raises(PeerLost, match="party_1 is absent"):
        predict_together(federation.run_dir, SamplesWanted(absent=["party_1"]), tmp_path, Console())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("config.yaml", "checkpoints"):
        (elsewhere / name).symlink_to(federation.run_dir / name)
    refuses("elsewhere", lambda: load_run_with_data(Run(elsewhere)), "party_1", "--listen")
    refuses("--processes", lambda: predict_together(elsewhere, SamplesWanted(), tmp_path, Console()), "lvfl train")
    assert read_checkpoint(Run(elsewhere)).rounds == 3
