"""Other projects beside ours: each command explains itself, and the page says what the rows say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import vfl
from scripts.lab.peers.ef_vfl import MeanHead
from scripts.lab.peers.environment import add_row, refusal, rows_of
from scripts.lab.peers.page import PAGE, written

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    path.stem
    for path in (ROOT / "scripts" / "lab" / "peers").glob("[!_]*.py")
    if "__main__" in path.read_text(encoding="utf-8") and path.stem != "environment"
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_peer_explains_itself_without_its_environment(name: str):
    command = [sys.executable, "-m", f"scripts.lab.peers.{name}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
    assert f"python -m scripts.lab.peers.{name} " in done.stdout


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
