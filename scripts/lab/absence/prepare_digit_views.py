"""Make six owners' tables of the handwritten digits in six views.

python scripts/lab/absence/prepare_digit_views.py RAW DIR

RAW holds mfeat-*.csv (UCI multiple features; the last column is the class). Rows of all files are the same digits in
the same order, so their key is their number. The owner of the morphological view (6 numbers) holds the labels.
"""

import csv
import sys
from pathlib import Path

VIEWS = ("fac", "fou", "kar", "mor", "pix", "zer")


def main(raw: Path, folder: Path) -> None:
    """Read and write."""
    folder.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
        rows = list(csv.reader((raw / f"mfeat-{view}.csv").open()))[1:]
        labels = view == "mor"
        heading = ["digit", *(f"{view}_{place}" for place in range(len(rows[0]) - 1)), *(["class"] if labels else [])]
        with (folder / f"{view}.csv").open("w", newline="") as file:
            kept = ([f"{number:04}", *row[: None if labels else -1]] for number, row in enumerate(rows))
            csv.writer(file).writerows([heading, *kept])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
