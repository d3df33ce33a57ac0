"""Make a two-class table whose positive class is rare, 6 %, from the flights: late ones are left out at random.

python scripts/lab/leakage/prepare_rare.py data/flights data/rare_flights

The first folder is that of scripts/lab/tables/prepare_flights.py. Written are airline.csv and test_flights.csv: 12,500
training flights and 12,500 of the test days, drawn with seed 0. weather.csv is used as it is.
"""

import csv
import random
import sys
from pathlib import Path

FLIGHTS, SHARE = 12_500, 0.06


def main(folder: Path, target: Path) -> None:
    """Read and write."""
    target.mkdir(parents=True, exist_ok=True)
    with (folder / "test_flights.csv").open(newline="") as file:
        tests = {row["flight"] for row in csv.DictReader(file)}
    with (folder / "airline.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    stream = random.Random(0)
    kept: list[dict[str, str]] = []
    for is_test in (False, True):
        for label, count in (("yes", round(SHARE * FLIGHTS)), ("no", FLIGHTS - round(SHARE * FLIGHTS))):
            found = [row for row in rows if row["late"] == label and (row["flight"] in tests) == is_test]
            kept += stream.sample(found, count)
    kept.sort(key=lambda row: row["flight"])
    for name, columns in (("airline", list(kept[0])), ("test_flights", ["flight"])):
        chosen = kept if name == "airline" else [row for row in kept if row["flight"] in tests]
        with (target / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(chosen)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
