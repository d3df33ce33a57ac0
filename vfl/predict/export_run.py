"""Export of pruned feature models and the head as files, with a card that describes them: all of a run, or one party's.

Exported models take raw features if the source's preparation can be a layer, and normalise as the finished model. No
training data is read: the files are checked on random samples.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, StrictUndefined
from torch import Tensor, nn

from vfl.base.costs import amount
from vfl.base.macs import count_macs, count_parameters
from vfl.base.metrics import decision_line, evaluated, format_metric, reached, title, worse_than_constant
from vfl.base.modules import weights_digest
from vfl.config import ConfigError
from vfl.config.prediction import PredictionConfig
from vfl.config.registry import is_own
from vfl.core.build import feature_config, new_feature_model
from vfl.core.export_model import TOLERANCE, Exported, export_model
from vfl.core.finished_party import FinishedParty
from vfl.core.local import LocalFederation
from vfl.core.tasks import Classification, Regression, Task
from vfl.data.samples import Samples
from vfl.data.source import Source
from vfl.models.mlp import has_placeholders
from vfl.predict.trained_run import load_party, open_federation
from vfl.reports.leakage import EXPLANATION, HEADINGS, audit_rows, read_audit, verdict
from vfl.reports.tables import table
from vfl.runs.atomic import check_new_folder, follow_links, write_atomically
from vfl.runs.stored_run import Run

CHECKED_SAMPLES = 32
HEAD = "head"
CARD = "card.json"
CARD_TEXT = "card.md"
FITTED = ".preparation.json"


class Scores(nn.Module):
    """A head and the merging of its members' outputs: [B, P] -> [B, C]."""

    def __init__(self, head: nn.Module, task: Task) -> None:
        super().__init__()
        self.head, self.task = head, task

    def forward(self, representation_BP: Tensor) -> Tensor:
        """Return the scores [B, C] of the embeddings [B, P]."""
        return self.task.merged(self.head(representation_BP))


def export_run(run_dir: Path, folder: Path) -> dict[str, Any]:
    """Export all models of a trained run, or the one of a party's own folder, into a new folder; return the card.

    The folder appears whole or not at all. Raises as ``open_federation`` and ``load_party``, ConfigError for a folder
    that exists or cannot be written, ExportMismatch for a model whose exported form has other outputs.
    """
    check_new_folder(folder)
    run = Run(run_dir)
    own = load_party(run)
    write = partial(_export_all, open_federation(run, with_data=False)) if own is None else partial(_export_own, *own)
    target = follow_links(folder)
    unfinished = target.with_name(f".partial-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        card = (
            _card(run)
            | write(unfinished)
            | {
                "tested": _tested(run),
                "leakage": read_audit(run_dir, run.checkpoints.rounds()[-1]),
            }
        )
        write_atomically(unfinished / CARD, json.dumps(card, indent=2) + "\n")
        write_atomically(unfinished / CARD_TEXT, card_text(card))
        unfinished.rename(target)
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return card


def _tested(run: Run) -> list[str]:
    """Return lines about a finished run: its metrics, and what they warn of."""
    if not run.finished:
        return []
    summary = run.summary
    values = reached(summary)[1].items()
    named = ", ".join(f"{title(name)} {format_metric(name, value)}" for name, value in values)
    lines = [f"{evaluated(summary)}: {named}" if named else "", decision_line(summary), worse_than_constant(summary)]
    return [line for line in lines if line]


def _export_all(trained: LocalFederation, folder: Path) -> dict[str, Any]:
    joint = trained.joint
    parties = trained.parties
    models = {
        party.name: _export_party(trained.source, party, raw, folder)
        for party, raw in zip(parties, trained.raw, strict=True)
    }
    representation_BP = torch.cat([_embeddings(party) for party in parties], dim=1)
    config, head, task = joint.config, joint.head.head, joint.task
    models[HEAD] = {
        "kind": "mlp",
        "placeholders": has_placeholders(head),
        "input": list(representation_BP.shape[1:]),
        "macs": count_macs(head, representation_BP.to(joint.head.runtime.device)),
        "parameters": count_parameters(head),
        **_files(
            export_model(head if config.models.members == 1 else Scores(head, task), (representation_BP,), folder, HEAD)
        ),
    }
    return {
        **trained.digests(),
        "classes": list(task.names),
        "threshold": task.threshold if isinstance(task, Classification) and task.classes == 2 else None,
        "label": label_of(task) if isinstance(task, Regression) else None,
        "checked_samples": len(representation_BP),
        "embeddings_in_order": [party.name for party in parties],
        "blocks": _blocks(config, parties[0]),
        "models": models,
    }


def label_of(task: Regression) -> dict[str, float]:
    """Return what the head's output is of a label: its unit and, of a quantile, which one."""
    quantile = {"quantile": task.by.quantile} if task.by.kind == "pinball" else {}
    return {"mean": task.mean, "std": task.std} | quantile


def _export_own(party: FinishedParty, source: Source, raw: Samples, folder: Path) -> dict[str, Any]:
    return {
        "model_digest": weights_digest(party.model.state_dict()),
        "finished_model_digest": party.evaluated.digest(),
        "checked_samples": min(CHECKED_SAMPLES, len(raw)),
        "embeddings_in_order": [party.name],
        "models": {party.name: _export_party(source, party, raw, folder)},
    }


def _card(run: Run) -> dict[str, Any]:
    config = run.prediction
    return {
        "name": config.name,
        "config_sha256": hashlib.sha256((run.folder / "config.yaml").read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "precision": "float32",
        "checked_to": TOLERANCE,
        "batch_statistics": "estimated",
    }


def _blocks(config: PredictionConfig, party: FinishedParty) -> list[int] | None:
    """Return the numbers of rows and columns into which images are cut; None for other features."""
    grid = config.data.partition
    return [grid.rows, grid.columns] if party.preparation.features.kind == "images" else None


def _embeddings(party: FinishedParty) -> Tensor:
    """Return the finished model's embeddings [B, D] of the samples for the check."""
    rows_B = torch.arange(min(CHECKED_SAMPLES, len(party.train)))
    return party.evaluated.embed("finished", party.batch(party.train, rows_B), 0.0).float().cpu()


def _export_party(source: Source, party: FinishedParty, raw: Samples, folder: Path) -> dict[str, Any]:
    model, preparation = party.evaluated.finished_copy(), party.preparation.module()
    fitted = party.preparation.fitted_text(party.column_names)
    if fitted is not None:
        write_atomically(folder / f"{party.name}{FITTED}", fitted + "\n")
    samples = party.train if preparation is None else raw
    inputs = tuple(tensor[:CHECKED_SAMPLES] for tensor in samples.inputs)
    dense, example = new_feature_model(party.name, party.data, party.config), party.batch(party.train, torch.arange(1))
    built, present = (_layer_widths(each) for each in (dense, party.model))
    pruned = [name for name, width in built.items() if present[name] < width]
    whole = model if preparation is None else nn.Sequential(preparation.to(party.runtime.device), model)
    return {
        "kind": kind_of(party.config, party.name),
        "input": list(party.preparation.features.shape),
        "input_types": [str(tensor.dtype).removeprefix("torch.") for tensor in inputs],
        "preparation": None if preparation is None else _numbers(preparation),
        "preparation_file": None if fitted is None else f"{party.name}{FITTED}",
        "alpha": party.alpha_max,
        "macs": count_macs(party.model, *example),
        "unpruned_macs": count_macs(party.runtime.place(dense), *example),
        "parameters": count_parameters(party.model),
        "widths": {name: present[name] for name in pruned},
        "original_widths": {name: built[name] for name in pruned},
        **_files(export_model(whole, inputs, folder, party.name)),
    }


def _layer_widths(model: nn.Module) -> dict[str, int]:
    """Return the outputs of the layers that have weights, by name."""
    weights = {name: each for name, each in model.named_parameters() if name.endswith(".weight") and each.dim() > 1}
    return {name.removesuffix(".weight"): len(each) for name, each in weights.items()}


def kind_of(config: PredictionConfig, party: str) -> str:
    """Return a party's kind of feature model as others may read it; code of its own is "own", wherever it lies."""
    settings = feature_config(config, party)
    if settings.kind == "torchvision":
        return f"torchvision {settings.options['name']}"
    return "own" if is_own(settings.kind) else settings.kind


def _numbers(preparation: nn.Module) -> dict[str, list[float]]:
    """Return the first layer's mean and standard deviation by channel."""
    return {name: tensor.flatten().tolist() for name, tensor in preparation.state_dict().items()}


def _files(exported: Exported) -> dict[str, Any]:
    return {"bytes": exported.files, "largest_difference": exported.differences}


def card_text(card: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    leakage = card.get("leakage")
    leaks = [] if leakage is None else [verdict(leakage), EXPLANATION, "", *table(HEADINGS, audit_rows(leakage))]
    return environment.from_string(template).render(card=card, amount=amount, leaks="\n".join(leaks))
