"""Make the owners' tables of the flights experiment: python prepare_flights.py RAW DIR.

RAW holds flights.csv, weather.csv and planes.csv (flights from New York in 2013, CC0). Written are airline.csv (flights
that arrived, what was known before departure, and whether they arrived more than 15 minutes late), weather.csv,
register.csv, and test_flights.csv: the keys of all flights of a random fifth of the days.
"""

import csv
import datetime
import random
import sys
from pathlib import Path

AIRLINE = ("carrier", "origin", "dest", "distance", "month")


def minutes(clock: str) -> int:
    """Return minutes after midnight of 517 for 05:17."""
    return int(clock) // 100 * 60 + int(clock) % 100


def main(raw: Path, folder: Path) -> None:
    """Read and write."""
    folder.mkdir(parents=True, exist_ok=True)
    days = [datetime.date(2013, 1, 1) + datetime.timedelta(day) for day in range(365)]
    test_days = set(random.Random(0).sample(days, 73))
    airline, test = [], []
    with (raw / "flights.csv").open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            if row["arr_delay"] == "NA":
                continue
            day = datetime.date(int(row["year"]), int(row["month"]), int(row["day"]))
            schedule = (day.weekday(), minutes(row["sched_dep_time"]), minutes(row["sched_arr_time"]))
            late = "yes" if float(row["arr_delay"]) > 15 else "no"
            known = [row[name] for name in AIRLINE]
            airline.append([f"f{number:06}", row["time_hour"], row["tailnum"], *known, *schedule, late])
            if day in test_days:
                test.append([f"f{number:06}"])
    heading = ["flight", "time_hour", "tailnum", *AIRLINE, "weekday", "departs", "arrives", "late"]
    for name, rows in (("airline", [heading, *airline]), ("test_flights", [["flight"], *test])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    for name, source in (("weather", "weather"), ("register", "planes")):
        (folder / f"{name}.csv").write_bytes((raw / f"{source}.csv").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
