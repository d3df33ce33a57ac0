"""FedMom's diagnostic: whether the biased gradient points to a saved run's last weights."""

import pytest
import torch

from vfl.horizontal.fedmom import FedMomConfig
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import TrainingLoop


@pytest.fixture
def server(configure, build, problem, engine):
    def make(**settings):
        return build(configure(horizontal={"algorithm": "fedmom", "fedmom": settings}), problem, engine)

    return make


def test_the_reference_is_the_same_run_from_every_folder(configure, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = configure(horizontal={"algorithm": "fedmom", "fedmom": {"reference": "old"}})
    own = config.with_whole_paths().horizontal.own
    assert isinstance(own, FedMomConfig)
    assert own.reference == tmp_path / "old"


def test_alignment_is_the_product_of_the_biased_gradient_with_the_way_to_the_reference(server, tmp_path, monkeypatch):
    finished = server()
    TrainingLoop(finished, 4, checkpoints=CheckpointStore(tmp_path / "checkpoints")).run()
    again = server(reference=str(tmp_path))
    sizes = again.algorithm.samples_N
    reports, expected = [], 0.0
    aggregate = again.algorithm.aggregate

    def recording(state, given):
        reports.extend(given)
        return aggregate(state, given)

    monkeypatch.setattr(again.algorithm, "aggregate", recording)
    for round_index in range(3):
        reports.clear()
        weights_P = again.state["weights"]
        metrics = again.train_round(round_index)
        gradient_P = -sum(sizes[report.work.client] / sum(sizes) * report.upload["delta"] for report in reports)
        expected = float(gradient_P @ (weights_P - finished.state["weights"]))
        assert metrics["fedmom/alignment"] == pytest.approx(expected, rel=1e-4)
    assert expected > 0  # the same run again: it goes where it went


def test_the_diagnostic_changes_nothing(server, tmp_path):
    plain = server()
    TrainingLoop(plain, 3, checkpoints=CheckpointStore(tmp_path / "checkpoints")).run()
    watched = server(reference=str(tmp_path))
    metrics = [watched.train_round(round_index) for round_index in range(3)]
    assert torch.equal(watched.state["weights"], plain.state["weights"])
    assert all("fedmom/alignment" in row for row in metrics)
    assert "fedmom/alignment" not in server().train_round(0)
