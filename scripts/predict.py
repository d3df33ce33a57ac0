"""Predict with a trained split model: python scripts/predict.py RUN [--data FILE.npz] [--absent PARTY --when-absent W].

Writes a CSV with a line per sample: its id, its label where known, the predicted class, all probabilities. FILE.npz
holds images uint8 [N, C, H, W] of the training images' shape and, where known, labels and ids. The model is rebuilt in
this process from RUN's last checkpoint.
Exit codes: 0 done, 2 bad input (one line on stderr), 3 a party is absent and nothing may stand for it.
"""

import argparse
import csv
import io
import sys
from pathlib import Path

from parties.predict import (
    PartyAbsent,
    accuracy,
    describe,
    image_shape,
    predict,
    predictions_rows,
    read_samples,
    use_samples,
)
from parties.trained import load_trained
from vfl.atomic import write_atomically
from vfl.cli import DONE, LOST, OneLineParser, exit_code
from vfl.data.split import split_data


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a vertical run of scripts/train.py")
    parser.add_argument("--data", type=Path, metavar="FILE.npz", help="images to predict (default: the test set)")
    parser.add_argument("--absent", metavar="PARTY", help="predict as if this party did not answer")
    parser.add_argument(
        "--when-absent",
        choices=("refuse", "zeros", "mean"),
        default="refuse",
        help="what stands for its embeddings: nothing, zeros, its mean embedding of the training (default: refuse)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="where to (default: RUN/predictions.csv)")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> int:
    """Predict and write the table."""
    server = load_trained(arguments.run)
    split = split_data(server.config)
    classes, ids_N, labels_N = split.labels.classes, split.labels.test.ids, split.labels.test.values
    if arguments.data is not None:
        samples = read_samples(arguments.data, image_shape(server.config, split), len(classes))
        use_samples(server, split, samples)
        ids_N, labels_N = samples.ids, samples.labels
    try:
        probabilities_NC = predict(server, arguments.absent, arguments.when_absent)
    except PartyAbsent as absence:
        print(f"error: {absence}", file=sys.stderr)
        return LOST
    if labels_N is not None:
        accuracies = {"accuracy": accuracy(probabilities_NC, labels_N)}
        if arguments.absent is not None:
            accuracies = {
                f"accuracy without {arguments.absent} ({arguments.when_absent})": accuracies["accuracy"],
                "with all parties": accuracy(predict(server), labels_N),
            }
        print(describe(accuracies))
    text = io.StringIO()
    heading, rows = predictions_rows(ids_N, labels_N, probabilities_NC, classes)
    csv.writer(text, lineterminator="\n").writerows([heading, *rows])
    path = arguments.out or arguments.run / "predictions.csv"
    write_atomically(path, text.getvalue())
    print(f"{len(rows)} predictions: {path}")
    return DONE


def main() -> int:
    """Run, and turn errors into one line and an exit code."""
    arguments = parse_arguments()
    return exit_code(lambda: run(arguments), warn=lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
