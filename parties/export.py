"""Writes every party's pruned feature model and the head as files, with a card of what they are."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from parties.feature_party import FeatureParty
from parties.head_server import HeadServer
from parties.trained import parties_of
from vfl.amounts import amount
from vfl.atomic import write_atomically
from vfl.config import ConfigError, dump_config
from vfl.export.model import TOLERANCE, Exported, export_model
from vfl.macs import count_macs, count_parameters

CHECKED_SAMPLES = 32
HEAD = "head"
CARD = "card.json"
CARD_TEXT = "card.md"


def export_run(server: HeadServer, folder: Path) -> dict[str, Any]:
    """Export all models of a trained run into a folder that does not exist yet; return the card.

    The folder appears whole or not at all. Raises ConfigError for a folder that is there or cannot be written,
    ExportMismatch for a model whose exported form computes something else.
    """
    if folder.exists():
        raise ConfigError(f"--out: {folder} exists already; name another folder")
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        card = _export(server, partial)
        write_atomically(partial / CARD, json.dumps(card, indent=2) + "\n")
        write_atomically(partial / CARD_TEXT, card_text(card))
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return card


def _export(server: HeadServer, folder: Path) -> dict[str, Any]:
    config = server.config
    parties = parties_of(server)
    models: dict[str, dict[str, Any]] = {}
    embeddings: list[torch.Tensor] = []
    for party in parties:
        count = min(CHECKED_SAMPLES, len(party.test))
        inputs = party.batch(party.test, torch.arange(count))
        model = party.evaluated.finished_copy()
        with torch.inference_mode():
            embeddings.append(model(*inputs).float().cpu())
        models[party.name] = _party_entry(party, export_model(model, inputs, folder, party.name))
    representation_BP = torch.cat(embeddings, dim=1)
    head = server.trainer.head
    models[HEAD] = {
        "input": list(representation_BP.shape[1:]),
        "macs": count_macs(head, representation_BP.to(server.trainer.runtime.device)),
        "parameters": count_parameters(head),
        **_files(export_model(head, (representation_BP,), folder, HEAD)),
    }
    return {
        "name": config.name,
        "config_sha256": hashlib.sha256(dump_config(config).encode()).hexdigest(),
        "model_digest": server.summary()["model_digest"],
        "torch": torch.__version__,
        "precision": "float32",
        "checked_to": TOLERANCE,
        "checked_samples": len(representation_BP),
        "embeddings_in_order": [party.name for party in parties],
        "models": models,
    }


def _party_entry(party: FeatureParty, exported: Exported) -> dict[str, Any]:
    return {
        "input": list(party.preparation.features.shape),
        "alpha": party.pruner.alpha_max,
        "macs": party.macs,
        "unpruned_macs": party.unpruned_macs,
        "parameters": count_parameters(party.model),
        "widths": party.pruner.widths(),
        "original_widths": party.pruner.original_widths,
        **_files(exported),
    }


def _files(exported: Exported) -> dict[str, Any]:
    return {"bytes": exported.files, "largest_difference": exported.differences}


def card_text(card: dict[str, Any]) -> str:
    """Return the card as Markdown."""
    lines = [
        f"# {card['name']}: exported models",
        "",
        f"Configuration sha256 `{card['config_sha256']}`, weights `{card['model_digest']}`, torch {card['torch']}.",
        f"Each party's model takes its prepared features [B, ...] and gives its embedding; the head takes the "
        f"embeddings side by side in the order {', '.join(card['embeddings_in_order'])} and gives the classes' scores. "
        f"Files were checked against PyTorch on {card['checked_samples']} test samples to {card['checked_to']:g}.",
        "",
        "| model | input | alpha | MACs | of unpruned | parameters | ONNX | torch.export | largest difference |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, model in card["models"].items():
        share = f"{model['macs'] / model['unpruned_macs']:.1%}" if "unpruned_macs" in model else ""
        alpha = f"{model['alpha']:g}" if "alpha" in model else ""
        sizes = [f"{amount(model['bytes'][f'{name}.{end}'])}B" for end in ("onnx", "pt2")]
        difference = f"{max(model['largest_difference'].values()):.1e}"
        shape = " x ".join(map(str, model["input"]))
        counts = [amount(model["macs"]).strip(), share, amount(model["parameters"]).strip()]
        lines.append(f"| {' | '.join([name, shape, alpha, *counts, *sizes, difference])} |")
    lines += ["", "Widths of the prunable layers (now / as built):", ""]
    for name, model in card["models"].items():
        if "widths" in model:
            widths = ", ".join(
                f"{layer} {width}/{model['original_widths'][layer]}" for layer, width in model["widths"].items()
            )
            lines.append(f"- {name}: {widths}")
    return "\n".join([*lines, ""])
