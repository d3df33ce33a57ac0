"""Exported models compute what PyTorch computes, are as small as their pruning says, and say what they are."""

import json
import runpy
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from rich.console import Console
from shorthand import as_before, build_feature_model

from vfl.compression.pruning import StructuredPruner
from vfl.config import ConfigError, parse_config
from vfl.core import export_model as exporting
from vfl.core.export_model import ExportMismatch, check_tools, export_model, plain_model, run_onnx
from vfl.core.party import SECTION
from vfl.data.source import open_source
from vfl.data.split import write_split
from vfl.models.features import ModelSpec, TableFeatures
from vfl.models.small_map import SmallMapConv2d
from vfl.models.table import TableMLP
from vfl.predict.export_run import card_text, export_run, kind_of
from vfl.predict.trained_run import load_run_with_data, read_checkpoint
from vfl.runs.checkpoint import CheckpointStore
from vfl.runs.run import run_experiment
from vfl.runs.run_folder import begin_run
from vfl.runs.stored_run import Run

SCRIPT = Path(__file__).parents[2] / "scripts" / "export.py"

# The exporters' own warnings; nothing of ours warns here.
pytestmark = [pytest.mark.release, pytest.mark.filterwarnings("ignore")]


def pruned_model(alpha: float, kind: str = "vgg11") -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.randn(5, 3, 16, 16)
    model = build_feature_model(kind, in_channels=3, image_size=(16, 16), embedding_size=6, width=0.15)
    model(images)  # gives BatchNorm statistics of its own
    if alpha:
        StructuredPruner(model, images).prune_to(alpha)
    return model.eval(), images


def test_a_pruned_model_computes_the_same_in_both_forms_for_any_batch(tmp_path: Path):
    model, images = pruned_model(0.6)
    exported = export_model(model, (images,), tmp_path, "m")
    assert exported.files.keys() == {"m.pt2", "m.onnx"}
    assert all(difference <= 1e-4 for difference in exported.differences.values())
    with torch.inference_mode():
        for batch in (1, 3, 5):
            torch.testing.assert_close(
                run_onnx(tmp_path / "m.onnx", images[:batch]), model(images[:batch]), atol=1e-4, rtol=1e-4
            )
    dense, _ = pruned_model(0.0)
    assert exported.files["m.onnx"] < 0.5 * export_model(dense, (images,), tmp_path, "dense").files["dense.onnx"]


def test_the_plain_copy_has_the_same_weights_and_leaves_the_model_as_it_was():
    model, images = pruned_model(0.4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = plain_model(model)
    assert not any(isinstance(module, SmallMapConv2d) for module in plain.modules())
    assert any(isinstance(module, SmallMapConv2d) for module in model.modules())
    assert plain.state_dict().keys() == before.keys()
    with torch.inference_mode():
        torch.testing.assert_close(plain(images), model(images), atol=1e-5, rtol=1e-5)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_form_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, images = pruned_model(0.0, "mlp")
    monkeypatch.setattr(exporting, "run_onnx", lambda path, inputs_B: run_onnx(path, inputs_B) + 0.01)
    with pytest.raises(ExportMismatch, match=r"m\.onnx: differs from PyTorch by 0\.01"):
        export_model(model, (images,), tmp_path, "m")


def test_without_the_extra_there_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exporting, "TOOLS", ("onnx", "no_such_runtime"))
    with pytest.raises(ConfigError, match=r"needs no_such_runtime; install with: pip install 'lvfl\[export\]'"):
        check_tools()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a run, exported by the command, and the command's exit code."""
    run_dir = tmp_path_factory.mktemp("exported") / "run"
    config = parse_config(
        {
            "name": "small",
            "threads": 1,
            "data": {"train_samples": 48, "test_samples": 40, "partition": {"rows": 1, "columns": 2}},
            "models": {"feature": {"kind": "mlp", "width": 0.2, "embedding_size": 8}, "head": {"hidden": [16]}},
            "training": {"rounds": 2, "batch_size": 16},
            "lightweighting": {"alpha": 0.4},
        }
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), as_before():
        warnings.simplefilter("ignore")
        run_experiment(config, run_dir, resume=False, console=Console(quiet=True))
        found = {"value": 0.9, "low": 0.8, "high": 1.0}
        finding = {"attacker": "party_1", "attack": "gradient norm", "known": 0, "measure": "AUC", "leaks": True}
        audit = {"rounds": 2, "findings": [finding | {"found": found, "control": found}], "left_out": []}
        (run_dir / "leakage.json").write_text(json.dumps(audit))
        patch.setattr(sys, "argv", ["export.py", str(run_dir)])
        code = runpy.run_path(str(SCRIPT))["main"]()
    return run_dir, code


def test_the_files_together_predict_as_the_run_does(exported: tuple[Path, int]):
    run_dir, code = exported
    assert code == 0
    trained = load_run_with_data(Run(run_dir))
    folder, parts = run_dir / "export", trained.split.parties
    embeddings = [run_onnx(folder / f"{part.party}.onnx", part.test.features) for part in parts]  # raw pixels
    logits_NC = run_onnx(folder / "head.onnx", torch.cat(embeddings, dim=1))
    torch.testing.assert_close(logits_NC.softmax(dim=1), trained.server.joint.predictions(), atol=1e-4, rtol=1e-4)


def test_the_cards_code_predicts_raw_images_as_the_run_does(
    exported: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
):
    run_dir, _ = exported
    code = (run_dir / "export" / "card.md").read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 10
    trained = load_run_with_data(Run(run_dir))
    names = {"images": trained.source.load().test.features.numpy()}
    monkeypatch.chdir(run_dir / "export")
    exec(code, names)
    predicted = trained.joint.predictions().argmax(dim=1).tolist()
    assert names["predicted"].tolist() == [str(each) for each in predicted]


@pytest.mark.parametrize(
    ("settings", "scores", "predicted"),
    [
        ({"threshold": 0.3}, [[0.8, 0.0], [0.9, 0.0], [0.0, 5.0]], ["yes", "no", "yes"]),
        ({"threshold": 0.5}, [[0.8, 0.0], [0.0, 0.1]], ["no", "yes"]),
        ({"classes": [], "label": {"mean": 100.0, "std": 2.0}}, [[0.0], [-3.0]], [100.0, 94.0]),
        ({"classes": [], "label": {"mean": 100.0, "std": 2.0, "quantile": 0.9}}, [[1.0]], [102.0]),
    ],
)
def test_the_cards_code_applies_threshold_and_the_labels_unit(
    exported: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, settings, scores, predicted
):
    """sigmoid(-0.8) = 0.31, sigmoid(-0.9) = 0.29."""
    run_dir, _ = exported
    card = json.loads((run_dir / "export" / "card.json").read_text())
    text = card_text(card | {"classes": ["no", "yes"], "blocks": None} | settings)

    class Session:
        def __init__(self, _file: str) -> None:
            pass

        def get_inputs(self):
            return []

        def run(self, _outputs, _inputs):
            return [np.array(scores, np.float32)]

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    names: dict[str, Any] = {"parts": [[], []]}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert names["predicted"].tolist() == predicted
    assert ("# in the label's unit; its 0.9 quantile\n" in text) == ("quantile" in settings.get("label", {}))


def test_a_party_exports_its_own_model_from_its_own_folder(exported: tuple[Path, int], tmp_path: Path):
    run_dir, _ = exported
    run = Run(run_dir)
    trained, split = read_checkpoint(run), open_source(run.vertical).split()
    party_file = write_split(tmp_path, split, shared_labels=False, overwrite=False)[1]
    own = tmp_path / "own"
    config = run.config.model_copy(update={"data": run.config.data.model_copy(update={"file": party_file})})
    begin_run(own, config)
    CheckpointStore(own / "checkpoints").save(2, {SECTION: trained.sections["party_2"]})
    card = export_run(own, own / "export")
    assert sorted(path.name for path in (own / "export").iterdir()) == [
        "card.json",
        "card.md",
        "party_2.onnx",
        "party_2.pt2",
    ]
    raw = split.parties[1].test.features
    expected = run_onnx(run_dir / "export" / "party_2.onnx", raw)
    assert torch.equal(run_onnx(own / "export" / "party_2.onnx", raw), expected)
    assert card["models"]["party_2"]["preparation"].keys() == {"mean", "std"}
    refuses(own.name, lambda: load_run_with_data(Run(own)), "exported")
    refuses("nothing", lambda: export_run(tmp_path / "nothing", tmp_path / "out"))


def test_the_card_says_what_the_files_are(exported: tuple[Path, int]):
    run_dir, _ = exported
    card = json.loads((run_dir / "export" / "card.json").read_text())
    summary = json.loads((run_dir / "summary.json").read_text())
    assert card["model_digest"] == summary["model_digest"]
    assert card["finished_model_digest"] == summary["finished_model_digest"]
    assert card["classes"] == [str(digit) for digit in range(10)]
    assert card["models"]["party_1"]["input_types"] == ["uint8"]
    assert card["embeddings_in_order"] == ["party_1", "party_2"]
    for name, party in summary["parties"].items():
        model = card["models"][name]
        assert (model["macs"], model["parameters"], model["alpha"]) == (
            party["macs_per_sample"],
            party["parameters"],
            party["alpha"],
        )
        assert all(model["widths"][layer] < width for layer, width in model["original_widths"].items())
        for file, size in model["bytes"].items():
            assert (run_dir / "export" / file).stat().st_size == size
    text = (run_dir / "export" / "card.md").read_text()
    assert "| party_2 | mlp | 1 x 32 x 16 | 0.4 |" in text
    assert card["leakage"]["rounds"] == 2
    assert "| party_1 | gradient norm | no row | AUC | 0.90 (0.80 to 1.00) | 0.90 (0.80 to 1.00) | yes |" in text


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        ({"kind": "torchvision", "options": {"name": "resnet18"}}, "torchvision resnet18"),
        ({"kind": "secret/place/my_models.py:Net"}, "own"),
        ({"kind": "cnn"}, "cnn"),
    ],
)
def test_the_card_names_a_model_by_kind_and_no_place_of_own_code(feature: dict[str, Any], kind: str):
    sections = {"name": "card", "models": {"feature": {"kind": "vgg11"}, "parties": {"party_2": feature}}}
    config = parse_config(sections)
    assert (kind_of(config, "party_1"), kind_of(config, "party_2")) == ("vgg11", kind)


@pytest.mark.parametrize("bins", [(), (1, 4, 16, 2)])
@pytest.mark.parametrize("category_sizes", [(), (3, 5)])
def test_a_model_of_tables_is_exported_with_and_without_categories(tmp_path, category_sizes, bins):
    torch.manual_seed(0)
    features = TableFeatures("table", (4 + len(category_sizes),), category_sizes, bins)
    model = TableMLP(ModelSpec(features, embedding_size=3, width=0.1, dropout=0.2)).eval()
    rows = torch.cat(
        [torch.randn(6, 4) * 5, *(torch.randint(0, size, (6, 1)).float() for size in category_sizes)], dim=1
    )
    exported = export_model(model, (rows,), tmp_path, "owner")
    assert max(exported.differences.values()) < 1e-5
