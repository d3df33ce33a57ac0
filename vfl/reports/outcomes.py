"""Figures of a run's ``predictions.csv``, if ``lvfl predict RUN`` has written it with labels: how good each one is.

Shapes: N samples, C classes.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Signatures of matplotlib and numpy are partly untyped, those of scikit-learn are missing.

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vfl.reports.figures import MOST_CURVES, ON_DARK, ON_LIGHT, Drawing, new_axes, place_legend
from vfl.reports.reasons import reason_drawings
from vfl.reports.runs import Subject
from vfl.runs.atomic import escape_formula
from vfl.runs.diagram_style import INK, curve_style

PREDICTIONS = "predictions.csv"
BINS = 10
"""Bins of equal width of predicted probabilities."""
MOST_CLASSES = 20
"""Most classes of a confusion matrix whose numbers can be read."""
CAPTION = "Of predictions.csv, as lvfl predict wrote it; each row counts once."
Floats = npt.NDArray[np.float64]


class Predicted(NamedTuple):
    """Predictions with known labels."""

    classes: tuple[str, ...]
    """Empty for amounts."""
    labels_N: Floats
    """Indices of the classes, or amounts."""
    chosen_N: Floats
    """Predicted classes or amounts, alike."""
    probabilities_NC: Floats


def outcome_drawings(subject: Subject) -> list[Drawing]:
    """Return ROC, calibration and confusion matrix, or residuals, of a single run, and the reasons of its scores.

    None without predictions.
    """
    path = subject.folder / PREDICTIONS
    if len(subject.runs) != 1 or not path.exists():
        return []
    predictions, reasons = read_predictions(path), reason_drawings(path)
    if predictions is None:
        return reasons
    if not predictions.classes:
        return [_draw_residuals(predictions), *reasons]
    matrix = [_draw_confusion(predictions)] if len(predictions.classes) <= MOST_CLASSES else []
    return [_draw_roc(predictions), _draw_calibration(predictions), *matrix, *reasons]


def read_predictions(path: Path) -> Predicted | None:
    """Read the table; None if it has no labels or is no such table."""
    with path.open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(file)
    of_classes = "prediction" in heading
    first = heading.index("prediction") if of_classes else heading.index("value") if "value" in heading else 0
    if not rows or first == 0 or heading[first - 1] != "label":
        return None
    if not of_classes:
        labels, values = (np.array([float(row[place]) for row in rows]) for place in (first - 1, first))
        return Predicted((), labels, values, values[:, None])
    end = heading.index("reasons_of") if "reasons_of" in heading else len(heading)  # an owner may be called p_1
    columns = [place for place in range(first + 2, end) if heading[place].startswith("p_")]
    classes = tuple(heading[place].removeprefix("p_") for place in columns)
    codes = {str(escape_formula(name)): float(code) for code, name in enumerate(classes)}
    labels, predicted = (np.array([codes[row[place]] for row in rows]) for place in (first - 1, first))
    return Predicted(classes, labels, predicted, np.array([[float(row[place]) for place in columns] for row in rows]))


def confusion(predictions: Predicted) -> npt.NDArray[np.int64]:
    """Return the number of samples by class [C] and predicted class [C]."""
    count = len(predictions.classes)
    pairs = predictions.labels_N.astype(int) * count + predictions.chosen_N.astype(int)
    return np.bincount(pairs, minlength=count**2).reshape(count, count)


def calibration(predictions: Predicted) -> list[tuple[float, float]]:
    """Return by bin the mean predicted probability and the share for which it came true.

    Of two classes the second one's probability, of more the predicted class's.
    """
    if len(predictions.classes) == 2:
        probability_N, is_true_N = predictions.probabilities_NC[:, 1], predictions.labels_N == 1
    else:
        probability_N, is_true_N = (
            predictions.probabilities_NC.max(axis=1),
            predictions.labels_N == predictions.chosen_N,
        )
    bins = np.minimum((probability_N * BINS).astype(int), BINS - 1)
    return [
        (float(probability_N[bins == each].mean()), float(is_true_N[bins == each].mean())) for each in np.unique(bins)
    ]


def _draw_roc(predictions: Predicted) -> Drawing:
    from sklearn import metrics as library  # pyright: ignore[reportMissingTypeStubs]  # slow to import, often unused

    metrics: Any = library
    figure, axes = new_axes("False positive rate", "True positive rate")
    codes = [1] if len(predictions.classes) == 2 else [*range(len(predictions.classes))][:MOST_CURVES]
    for position, code in enumerate(codes):
        false, true, _ = metrics.roc_curve(predictions.labels_N == code, predictions.probabilities_NC[:, code])
        area = metrics.auc(false, true)
        axes.plot(
            false, true, label=f"{predictions.classes[code]}, AUC {area:.3f}", **curve_style(position, len(false))
        )
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    place_legend(figure, axes)
    return Drawing("roc", "ROC, each class against the rest", CAPTION, figure)


def _draw_calibration(predictions: Predicted) -> Drawing:
    class_name = predictions.classes[1] if len(predictions.classes) == 2 else "the predicted class"
    figure, axes = new_axes(f"Predicted probability of {class_name}", "Share that came true")
    points = calibration(predictions)
    axes.plot(*zip(*points, strict=True), **curve_style(0, len(points)))
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=":")
    return Drawing("calibration", "Calibration", f"{CAPTION} Means of {BINS} bins of equal width.", figure)


def _draw_confusion(predictions: Predicted) -> Drawing:
    figure, axes = new_axes("Predicted class", "Class")
    axes.grid(visible=False)
    counts = confusion(predictions)
    axes.pcolormesh(counts, cmap="cividis", edgecolors="white", linewidth=1)
    for (row, column), count in np.ndenumerate(counts):
        color = ON_LIGHT if count >= counts.max() / 2 else ON_DARK
        axes.text(column + 0.5, row + 0.5, f"{count}", ha="center", va="center", color=color, fontsize=8)
    places = np.arange(len(predictions.classes)) + 0.5
    axes.set_xticks(places, predictions.classes, rotation=45 if len(predictions.classes) > 5 else 0)
    axes.set_yticks(places, predictions.classes)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    return Drawing("confusion", "Confusion matrix", f"{CAPTION} Number of samples.", figure)


def _draw_residuals(predictions: Predicted) -> Drawing:
    figure, axes = new_axes("Label", "Prediction minus label")
    axes.scatter(
        predictions.labels_N, predictions.chosen_N - predictions.labels_N, 9, color=INK, alpha=0.5, linewidths=0
    )
    axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
    return Drawing("residuals", "Residuals", CAPTION, figure)
