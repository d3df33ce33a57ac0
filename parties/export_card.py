"""The card of exported models as Markdown, with code that uses them."""

from collections.abc import Mapping
from typing import Any

from vfl.amounts import amount

Card = Mapping[str, Any]


def card_text(card: Card) -> str:
    """Return the card as Markdown."""
    lines = [
        f"# {card['name']}: exported models",
        "",
        f"Configuration sha256 `{card['config_sha256']}`, weights `{card['model_digest']}`, with batch statistics "
        f"({card['batch_statistics']}) `{card['finished_model_digest']}`, torch {card['torch']}. Files were checked "
        f"against PyTorch on {card['checked_samples']} test samples to {card['checked_to']:g}.",
        "",
        *_inputs(card),
        "",
        *_code(card),
        "",
        "| model | input | alpha | MACs | of unpruned | parameters | ONNX | torch.export | largest difference |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(name, model) for name, model in card["models"].items()),
        "",
        "Widths of the prunable layers (now / as built):",
        "",
    ]
    for name, model in card["models"].items():
        if "widths" in model:
            widths = ", ".join(
                f"{layer} {width}/{model['original_widths'][layer]}" for layer, width in model["widths"].items()
            )
            lines.append(f"- {name}: {widths}")
    return "\n".join([*lines, ""])


def _inputs(card: Card) -> list[str]:
    """Return what each model takes."""
    lines: list[str] = []
    for name in card["embeddings_in_order"]:
        model = card["models"][name]
        shape = ", ".join(map(str, model["input"]))
        fitted: dict[str, list[float]] | None = model["preparation"]
        by = ", ".join(f"{what} {[round(each, 6) for each in values]}" for what, values in (fitted or {}).items())
        raw = "prepared features" if fitted is None else f"raw features; the model prepares them by {by}"
        lines.append(f"- {name}: {', '.join(model['input_types'])} [samples, {shape}], {raw}")
    if "head" in card["models"]:
        lines.append(f"- head: the embeddings side by side in the order {', '.join(card['embeddings_in_order'])}")
    if card.get("classes"):
        lines.append(f"- scores are of the classes {', '.join(card['classes'])}")
    return lines


def _code(card: Card) -> list[str]:
    """Return Python that runs in this folder."""
    names = list(card["embeddings_in_order"])
    lines = [
        "import numpy as np, onnxruntime",
        "def run(name, *tensors):",
        '    session = onnxruntime.InferenceSession(f"{name}.onnx")',
        "    return session.run(None, {each.name: tensor for each, tensor in zip(session.get_inputs(), tensors)})[0]",
    ]
    if "head" not in card["models"]:
        lines.append(f"embedding = run({names[0]!r}, *features)  # a list of the tensors above")
        return ["```python", *lines, "```"]
    if card["blocks"] is not None:
        rows, columns = card["blocks"]
        lines.append("# images: whole ones, of the parties' type and channels")
        lines.append(
            f"parts = [[part] for band in np.split(images, {rows}, 2) for part in np.split(band, {columns}, 3)]"
        )
    else:
        lines.append("# parts: for each party a list of its tensors above")
    lines.append(f"embeddings = [run(name, *part) for name, part in zip({names}, parts)]")
    lines.append('scores = run("head", np.concatenate(embeddings, axis=1))')
    if card["classes"]:
        lines.append(f"predicted = np.take({list(card['classes'])}, scores.argmax(axis=1))")
    return ["```python", *lines, "```"]


def _row(name: str, model: Mapping[str, Any]) -> str:
    share = f"{model['macs'] / model['unpruned_macs']:.1%}" if "unpruned_macs" in model else ""
    alpha = f"{model['alpha']:g}" if "alpha" in model else ""
    sizes = [f"{amount(model['bytes'][f'{name}.{end}'])}B" for end in ("onnx", "pt2")]
    difference = f"{max(model['largest_difference'].values()):.1e}"
    shape = " x ".join(map(str, model["input"]))
    counts = [amount(model["macs"]).strip(), share, amount(model["parameters"]).strip()]
    return f"| {' | '.join([name, shape, alpha, *counts, *sizes, difference])} |"
