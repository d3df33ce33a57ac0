"""Other projects beside ours: each command explains itself, and the page says what the rows say."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import vfl
from scripts.lab.peers import anchors
from scripts.lab.peers.ef_vfl import MeanHead
from scripts.lab.peers.environment import add_row, refusal, rows_of
from scripts.lab.peers.page import PAGE, written
from scripts.lab.peers.split_models import WIDTHS, image_half, label_half

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    path.stem
    for path in (ROOT / "scripts" / "lab" / "peers").glob("[!_]*.py")
    if "__main__" in path.read_text(encoding="utf-8") and path.stem != "environment"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_peer_explains_itself_without_its_environment(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "lab" / "peers" / f"{name}.py"), run_name="__main__")
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (0, "")
    assert told.out.startswith("usage: ")
    assert f"python -m scripts.lab.peers.{name} " in told.out


def test_the_page_is_what_the_rows_say():
    """Write it by python -m scripts.lab.peers.page."""
    assert PAGE.read_text(encoding="utf-8") == written()


def test_a_row_is_kept_as_soon_as_it_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert rows_of(tmp_path / "new" / "rows.csv") == []
    for seed in (0, 1):
        add_row(tmp_path / "new" / "rows.csv", {"seed": seed, "accuracy": 0.5})
    assert rows_of(tmp_path / "new" / "rows.csv") == [
        {"seed": "0", "accuracy": "0.5"},
        {"seed": "1", "accuracy": "0.5"},
    ]


def test_a_refusal_is_quoted_without_what_pip_says_besides():
    told = "WARNING: a mirror\nERROR: Cannot install a\nERROR: ResolutionImpossible: see b\n"
    assert refusal(told) == "ERROR: Cannot install a / ERROR: ResolutionImpossible: see b"
    assert refusal("Traceback\n  File\nImportError: no c\n") == "ImportError: no c"


def test_an_own_head_fuses_embeddings_by_their_mean():
    """Two full batches of plain SGD give the weights of the same model by hand."""
    torch.manual_seed(0)
    rows, labels = torch.randn(12, 6), torch.tensor([0, 1, 2] * 4)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()) for _ in range(2)]
    head = MeanHead(4, 3)
    parties = [vfl.Party(f"party_{k}", rows[:, 3 * k : 3 * k + 3], model=models[k]) for k in range(2)]
    settings = {
        "training.rounds": 2,
        "training.batch_size": 10,
        "training.optimizer": {"learning_rate": 0.5, "momentum": 0.0, "weight_decay": 0.0},
        "threads": 1,
    }
    run = vfl.fit(parties, labels.numpy(), head=head, test=[10, 11], settings=settings)
    train = torch.arange(10)
    parameters = [each for module in (*models, head) for each in module.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.5)
    for _ in range(2):
        sent = torch.stack([models[k](rows[train, 3 * k : 3 * k + 3]) for k in range(2)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(head.classes(sent.mean(0)), labels[train]).backward()
        optimizer.step()
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(run.head.state_dict()[name], weight, atol=1e-5, rtol=1e-4)
    for k, model in enumerate(models):
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(run.feature_model(f"party_{k}").state_dict()[name], weight, atol=1e-5, rtol=1e-4)


def rows(folder: Path, name: str, text: str) -> Path:
    """Write a CSV file of space-separated cells."""
    lines = [line.split() for line in text.strip().splitlines()]
    (folder / f"{name}.csv").write_text("\n".join(map(",".join, lines)) + "\n", encoding="utf-8")
    return folder


def test_the_time_to_start_is_no_part_of_a_key(tmp_path: Path):
    told = "side keys cpu_s\nours 100 9\nECDH 100 4\nours 1000100 109\nECDH 1000100 54"
    anchor = anchors.of_matching(rows(tmp_path, "psi", told))
    assert anchor.rows == [("ECDH (by a curve, as ours), 1,000,100 keys", "–", "50", "100", "2.00")]
    assert anchor.lost[0].startswith("**Matching**: 100 µs a key, in SecretFlow's PSI (ECDH) 50.0: ")
    assert anchor.won == []


def test_rounds_a_second_are_behind_or_ahead_by_peer_and_model(tmp_path: Path):
    for name, speed in (("fedavg_flwr_logistic", 2), ("fedavg_fedjax_cnn", 40)):
        rows(tmp_path, name, f"pair side rounds_per_s accuracy\n0 ours 20 0.9\n0 theirs {speed} 0.91")
    anchor = anchors.of_fedavg(tmp_path)
    assert [each[0] for each in anchor.rows] == ["logistic, Flower", "cnn, fedjax"]
    assert anchor.rows[0][2:] == ("2.0 (91.0 %)", "20.0 (90.0 %)", "10.00")
    assert "fedjax (cnn, ratio 0.5)" in anchor.lost[0]
    assert "Flower (logistic, ratio 10)" in anchor.won[0]


def test_a_method_is_behind_where_one_of_ours_is_no_worse_in_bytes_and_accuracy(tmp_path: Path):
    told = (
        "method,seed,accuracy,bytes_told,bytes\n"
        '"ours, 4 bits coded, error feedback",0,0.9,0,90000000\n'
        "SVFL,0,0.9,0,1500000000\nEF-VFL topk 0.01,0,0.91,0,50000000\nC-VFL topk 0.01,0,0.8,0,50000000\n"
    )
    (tmp_path / "ef_vfl.csv").write_text(told, encoding="utf-8")
    anchor = anchors.of_ef_vfl(tmp_path)
    assert [each[0] for each in anchor.rows] == ["no compression", "top-k 0.01"]
    assert anchor.rows[0][2:] == ("SVFL 90.0 % at 1,500", "90.0 % at 90 (4 bits coded)", "0.06")
    assert anchor.rows[1][2:] == ("EF-VFL 91.0 %, C-VFL 80.0 % at 50", "90.0 % at 90 (4 bits coded)", "1.80")
    assert "with as few as EF-VFL topk 0.01 (91.0 % at 50), C-VFL topk 0.01 (80.0 % at 50);" in anchor.lost[0]
    assert anchor.won[0].endswith("no less accuracy than 1 of 3")


def test_an_anchor_without_rows_claims_nothing(tmp_path: Path):
    for of in (anchors.of_split_learning, anchors.of_fedavg, anchors.of_matching, anchors.of_ef_vfl):
        anchor = of(tmp_path)
        assert (anchor.rows, anchor.lost, anchor.won) == ([], [], [])


@pytest.mark.parametrize("kind", WIDTHS)
def test_halves_of_a_split_model_fit(kind: str):
    embedding = image_half(kind)(torch.zeros(2, 3, 16, 16))
    assert embedding.shape == (2, WIDTHS[kind])
    assert label_half(kind)(embedding).shape == (2, 10)
