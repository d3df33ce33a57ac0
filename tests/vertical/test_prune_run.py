"""lvfl prune: the models of a finished run are pruned and refitted, nothing is trained, and the result is a run."""

import copy
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from predicted import predict_in_process
from refusals import refused, refuses
from tiny_training import TINY, content_of, rows_of, summary_of, train_run
from torch import nn

import vfl
from vfl.base.macs import count_macs
from vfl.compression.pruning import StructuredPruner
from vfl.compression.refit import Refit
from vfl.config import ConfigError, parse_config
from vfl.core.batch_statistics import estimate_statistics
from vfl.predict.trained_run import load_run_with_data, open_federation
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.loop import Callback, TrainingLoop

SECTIONS: dict[str, Any] = TINY | {"lightweighting": {}, "training": TINY["training"] | {"rounds": 2}}


def train(folder: Path, sections: dict[str, Any]) -> Path:
    train_run(sections, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", SECTIONS)


def scores_of(run_dir: Path) -> list[list[float]]:
    return predict_in_process(vfl.Run(run_dir), None, (), "refuse").probabilities_NC.tolist()


def masked(model: nn.Module, removed: dict[str, list[int]]) -> nn.Module:
    """The model whose removed filters are 0, and their normalisations."""
    model, layers = copy.deepcopy(model), dict(model.named_modules())
    names = list(layers)
    with torch.no_grad():
        for name, channels in removed.items():
            model.get_parameter(f"{name}.weight")[channels] = 0
            norm = names[names.index(name) + 1]
            if isinstance(layers[norm], nn.BatchNorm2d):
                model.get_parameter(f"{norm}.weight")[channels] = model.get_parameter(f"{norm}.bias")[channels] = 0
    return model


def test_without_refit_the_scores_are_those_of_the_masked_models(run: Path, tmp_path: Path):
    new = vfl.prune(vfl.Run(run), {"alpha": 0.4, "pruning.refit": False}, run_dir=tmp_path / "new")
    whole = load_run_with_data(vfl.Run(run))
    for party, pruned in zip(whole.parties, load_run_with_data(new).parties, strict=True):
        (event,) = pruned.pruner.state_dict()["history"]
        party.evaluated.model = masked(party.model, event["removed"])
        party.evaluated.forget()
    whole.server.evaluation.forget()
    expected = whole.server.evaluate()
    assert new.summary["test_loss"] == pytest.approx(expected["loss/test"], rel=1e-5)
    assert new.summary["test_accuracy"] == expected["accuracy/test"]


def test_every_party_is_pruned_and_refitted_to_its_own_rows_and_the_head_stays(run: Path, tmp_path: Path):
    ratios = {"party_1": 0.4, "party_2": 0.7}
    new = vfl.prune(vfl.Run(run), {"alpha": ratios}, run_dir=tmp_path / "new")
    before, after = load_run_with_data(vfl.Run(run)), load_run_with_data(new)
    for party, pruned in zip(before.parties, after.parties, strict=True):
        macs, sample = party.macs, partial(estimate_statistics, party.model, [party.train.features], party.runtime)
        StructuredPruner(party.model, party.example).prune_to(ratios[party.name], refit=Refit(sample))
        for name, weight in party.model.state_dict().items():
            torch.testing.assert_close(pruned.model.state_dict()[name], weight, rtol=0, atol=0)
        report = new.summary["parties"][party.name]
        assert report["alpha"] == ratios[party.name]
        assert report["macs_per_sample"] == pruned.macs < macs
        spent = report["train_macs"] - summary_of(run)["parties"][party.name]["train_macs"]
        assert spent > 48 * macs, "the refit is counted"
    heads = [each.server.trainer.head.state_dict() for each in (before, after)]
    assert all(torch.equal(heads[1][name], weight) for name, weight in heads[0].items())


def test_alpha_zero_keeps_every_bit_and_the_first_run_stays_as_it_is(run: Path, tmp_path: Path):
    was = content_of(run)
    new = vfl.prune(vfl.Run(run), {"alpha": 0}, run_dir=tmp_path / "new").folder
    assert scores_of(new) == scores_of(run)
    assert summary_of(new)["finished_model_digest"] == summary_of(run)["finished_model_digest"]
    assert content_of(run) == was


def test_the_new_run_is_opened_as_any_and_tells_its_savings(run: Path, tmp_path: Path):
    new = vfl.prune(vfl.Run(run), {"alpha": 0.5}, run_dir=tmp_path / "new")
    scores = torch.tensor(scores_of(new.folder))
    labels = open_federation(new, with_data=True).joint.samples.values
    assert (scores.argmax(dim=1) == labels).double().mean().item() == pytest.approx(new.summary["test_accuracy"])
    assert rows_of(new.folder)[-1]["accuracy/test"] == new.summary["test_accuracy"]
    assert [row["round"] for row in rows_of(new.folder)] == [0, 1]
    for party in open_federation(new, with_data=False).parties:  # as an export opens it
        macs = new.summary["parties"][party.name]["macs_per_sample"]
        assert count_macs(party.model, party.train.features) == macs
    (*_, before), (*_, row), saved = rows_of(run), rows_of(new.folder), new.summary["savings"]
    assert saved["compute"] < summary_of(run)["savings"]["compute"], "the refit is counted"
    assert {share: row[f"savings/{share}"] for share in saved} == saved
    assert row["savings_compute/party_1"] < before["savings_compute/party_1"]
    assert row["uplink_bytes/party_1"] == before["uplink_bytes/party_1"]


def test_a_party_that_keeps_its_model_keeps_its_last_rounds_psi(tmp_path: Path):
    old = train(tmp_path / "old", SECTIONS | {"lightweighting": {"alpha": {1: 0.5}}})
    new = vfl.prune(vfl.Run(old), {"alpha": {"party_1": 0.2, "party_2": 0.7}}, run_dir=tmp_path / "new")
    before, after = (rows_of(each)[-1] for each in (old, new.folder))
    assert after["psi/party_1"] == before["psi/party_1"] > 0
    assert after["psi/party_2"] != before["psi/party_2"]
    assert [after[f"alpha/{name}"] for name in ("party_1", "party_2")] == [0.5, 0.7]


def test_a_run_stopped_with_smaller_images_is_refused(tmp_path: Path):
    class Stop(Callback):
        def on_round(self, loop: TrainingLoop, round_index: int, metrics: dict[str, float]) -> None:
            loop.request_stop("it is good enough")

    config, old = parse_config(SECTIONS | {"lightweighting": {"resolution": {0: 0.5, 1: 1.0}}}), tmp_path / "old"
    train_run(config, old, Stop())
    refuses("old", lambda: vfl.prune(vfl.Run(old), {"alpha": 0.5}), "party_1")
    assert not (tmp_path / "old-pruned").exists()


def test_rows_after_the_runs_end_are_left_out(run: Path, tmp_path: Path):
    """As of a resume for more rounds that was killed before its first checkpoint."""
    shutil.copytree(run, tmp_path / "old")
    with (tmp_path / "old/metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "accuracy/test": 0.0}\n')
    new = vfl.prune(vfl.Run(tmp_path / "old"), {"alpha": 0.5}, run_dir=tmp_path / "new")
    assert [row["round"] for row in rows_of(new.folder)] == [0, 1]


@pytest.mark.parametrize("labels", ["shared", "server"])
def test_it_trains_on(tmp_path: Path, labels: str):
    more = {"labels": labels, "rounds": 2}
    old = train(tmp_path / "old", SECTIONS | {"training": SECTIONS["training"] | more})
    new = vfl.prune(vfl.Run(old), {"alpha": 0.5}, run_dir=tmp_path / "new")
    longer: Any = new.config.model_copy(update={"training": new.config.training.model_copy(update={"rounds": 3})})
    train_run(longer, new.folder, resume=True)
    row = rows_of(new.folder)[-1]
    assert row["round"] == 2
    assert row["macs_per_sample/party_1"] == new.summary["parties"]["party_1"]["macs_per_sample"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([], "alpha: is missing"),
        (["alpha=1.2"], "lightweighting.alpha"),
        (["alpha=0.4", "beta=0.5"], "beta: is no setting of a pruning"),
        (["alpha=0.4", "pruning.refitt=true"], "pruning.refitt"),
    ],
)
def test_settings_that_cannot_be_are_one_line(run: Path, tmp_path: Path, settings: list[str], told: str, call: Any):
    assert told in call("prune", run, *settings, "--out", tmp_path / "new").error
    assert not (tmp_path / "new").exists()


def test_runs_that_cannot_be_pruned_are_one_line(run: Path, tmp_path: Path, call: Any):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run, unfinished)
    (unfinished / "summary.json").unlink()
    resumed = tmp_path / "resumed"
    shutil.copytree(run, resumed)
    store = CheckpointStore(resumed / "checkpoints")
    store.save(3, store.load(2))  # of a longer training that was interrupted; its summary is the shorter one's
    horizontal = tmp_path / "horizontal"
    shutil.copytree(run / "checkpoints", horizontal / "checkpoints")
    (horizontal / "config.yaml").write_text(yaml.safe_dump({"name": "fedavg", "mode": "horizontal"}))
    apart = tmp_path / "apart"
    shutil.copytree(run, apart)
    sections = CheckpointStore(apart / "checkpoints").load(2)
    sections["party_2"] = {"round": 2, "digest": "0" * 64}  # as party processes leave it
    CheckpointStore(apart / "checkpoints").save(2, sections)
    for folder, told in (
        (apart, "party_2 is a process of its own"),
        (unfinished, "is not finished"),
        (resumed, "is not finished"),
        (horizontal, "only a vertical run"),
        (tmp_path / "none", "holds no run"),
    ):
        assert told in call("prune", folder, "alpha=0.4").error


def test_a_run_of_a_programs_own_models_is_pruned_in_its_training(tmp_path: Path):
    parties = [vfl.Party(name, torch.randn(20, 2), nn.Linear(2, 4)) for name in ("a", "b")]
    quick = {"threads": 1, "training.rounds": 1, "training.steps_per_round": 1, "training.batch_size": 8}
    own = vfl.fit(parties, [0, 1, 2, 1] * 5, settings=quick)
    refuses("run", lambda: vfl.prune(own, {"alpha": 0.5}, run_dir=tmp_path / "new"), "lightweighting.alpha")


def test_the_command_shows_what_it_costs_and_saves(run: Path, tmp_path: Path, call: Any):
    said = call("prune", run, "alpha=0.5", "--out", tmp_path / "new")
    assert said.code == 0
    reached = [f"{summary_of(each)['test_accuracy']:.2%}" for each in (run, tmp_path / "new")]
    assert f"accuracy: {reached[0]} before, {reached[1]} after" in said.out
    assert re.search(r"party_1 +0\.5 ", said.out)
    assert "exists already" in call("prune", run, "alpha=0.5", "--out", tmp_path / "new").error
    with refused("lightweighting.alpha", "0.5"):
        vfl.prune(vfl.Run(tmp_path / "new"), {"alpha": 0.5}, run_dir=tmp_path / "again")
    with pytest.warns(match="too narrow"), pytest.raises(ConfigError, match=r"alpha: 0.01 removes nothing"):
        vfl.prune(vfl.Run(run), {"alpha": 0.01}, run_dir=tmp_path / "again")
