"""Make the owners' tables of the flights experiment: python scripts/lab/prepare_flights.py RAW DIR.

RAW holds flights.csv, weather.csv and planes.csv (flights from New York in 2013, CC0). Written are airline.csv (flights
that arrived, what was known before departure, and whether they arrived more than 15 minutes late), weather.csv,
register.csv, and test_flights.csv: the keys of all flights of a random fifth of the days. DIR/matched/ has them as
processes of their own need them: a row per flight that has weather, all under the flight's key, empty where the
register has no row.
"""

import csv
import datetime
import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Row = dict[str, object]

WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
REGISTER = ("year", "manufacturer", "model", "engines", "seats", "engine")
NEW_YEAR = datetime.date(2013, 1, 1)


def minutes(clock: str) -> int:
    """Return the minutes after midnight of a clock such as 517, which is 05:17."""
    return int(clock) // 100 * 60 + int(clock) % 100


def day_of(row: Mapping[str, str]) -> int:
    """Return the number of days since New Year."""
    return (datetime.date(int(row["year"]), int(row["month"]), int(row["day"])) - NEW_YEAR).days


def waves(name: str, value: float, period: float, count: int) -> Row:
    """Return a periodic time as ``count`` sines and cosines."""
    angles = {n: 2 * math.pi * n * value / period for n in range(1, count + 1)}
    sines: Row = {f"{name}_sin{n}": f"{math.sin(angle):.5f}" for n, angle in angles.items()}
    cosines: Row = {f"{name}_cos{n}": f"{math.cos(angle):.5f}" for n, angle in angles.items()}
    return {**sines, **cosines}


def flight_row(number: int, row: Mapping[str, str], traffic: int) -> Row:
    """Return the airline's data before departure, and the label. ``traffic``: departures planned in that hour."""
    day, departs = day_of(row), minutes(row["sched_dep_time"])
    return {
        "flight": f"f{number:06}",
        **{name: row[name] for name in ("time_hour", "tailnum", "carrier", "origin", "dest", "month", "hour")},
        "weekday": (NEW_YEAR + datetime.timedelta(day)).weekday(),
        "distance": row["distance"],
        "departs": departs,
        "arrives": minutes(row["sched_arr_time"]),
        "traffic": traffic,
        "day": day,
        **waves("departs", departs, 24 * 60, 2),
        **waves("day", day, 365, 2),
        "late": "yes" if float(row["arr_delay"]) > 15 else "no",
    }


def weather_row(row: Mapping[str, str]) -> Row:
    """Return an hour at an airport, with wind also as components and rain also as a logarithm."""
    known: Row = {name: "" if row[name] == "NA" else row[name] for name in WEATHER}
    angle, speed = known["wind_dir"], known["wind_speed"]
    east_north = [""] * 2
    if angle != "" and speed != "":
        parts = math.sin(math.radians(float(row["wind_dir"]))), math.cos(math.radians(float(row["wind_dir"])))
        east_north = [f"{part * float(row['wind_speed']):.4f}" for part in parts]
    return {
        "origin": row["origin"],
        "time_hour": row["time_hour"],
        **known,
        "wind_east": east_north[0],
        "wind_north": east_north[1],
        "rain": "" if known["precip"] == "" else f"{math.log1p(50 * float(row['precip'])):.5f}",
        "hour": row["hour"],
        "day": day_of(row),
        **waves("hour", float(row["hour"]), 24, 1),
        **waves("day", day_of(row), 365, 2),
    }


def read(path: Path) -> list[dict[str, str]]:
    """Return a table's rows."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table with the columns of the first row, which all rows have."""
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def by_flight(flights: Sequence[Row], key: Sequence[str], known: Mapping[tuple[object, ...], Row]) -> Iterable[Row]:
    """Yield another owner's row for each flight, empty if it has none."""
    nothing = dict.fromkeys(next(iter(known.values())), "")
    for flight in flights:
        yield {"flight": flight["flight"], **known.get(tuple(flight[name] for name in key), nothing)}


def main(raw: Path, folder: Path) -> None:
    """Read and write."""
    (folder / "matched").mkdir(parents=True, exist_ok=True)
    planned = read(raw / "flights.csv")
    traffic = Counter((row["origin"], row["time_hour"]) for row in planned)
    test_days = set(random.Random(0).sample(range(365), 73))
    flights = [
        flight_row(number, row, traffic[row["origin"], row["time_hour"]])
        for number, row in enumerate(planned)
        if row["arr_delay"] != "NA"
    ]
    weather = [weather_row(row) for row in read(raw / "weather.csv")]
    register: list[Row] = [
        {"tailnum": row["tailnum"], **{name: "" if row[name] == "NA" else row[name] for name in REGISTER}}
        for row in read(raw / "planes.csv")
    ]
    for name, rows in (("airline", flights), ("weather", weather), ("register", register)):
        write(folder / f"{name}.csv", rows)
    write(folder / "test_flights.csv", ({"flight": row["flight"]} for row in flights if row["day"] in test_days))
    hours = {(row["origin"], row["time_hour"]): row for row in weather}
    planes: dict[tuple[object, ...], Row] = {(row["tailnum"],): row for row in register}
    both = [row for row in flights if (row["origin"], row["time_hour"]) in hours]
    write(folder / "matched/airline.csv", both)
    write(folder / "matched/weather.csv", by_flight(both, ("origin", "time_hour"), hours))
    write(folder / "matched/register.csv", by_flight(both, ("tailnum",), planes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
