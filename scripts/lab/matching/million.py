"""Match N keys at each of some owners, half of them common.

python scripts/lab/matching/million.py FOLDER [--keys N] [--owners K]

All processes run on this machine (lvfl align --processes). Shows the seconds, and the most memory of all processes
together: the sum of what each has in memory (RSS: pages that they share count several times) and of what each is to
blame for (PSS: they count once).
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

POLL_S = 0.5


def write_tables(folder: Path, keys: int, owners: int) -> Path:
    """Write each owner's table, and the experiment."""
    lines = ["name: million", "data:", "  dataset: {kind: tables}", "  tables:"]
    for owner in range(owners):
        start = keys // 2 * owner
        own = range(start, start + keys) if owner < 2 else range(keys // 2, keys // 2 + keys)
        rows = "\n".join(f"customer-{number:09},{number % 2}" for number in own)
        (folder / f"o{owner}.csv").write_text(f"id,flag\n{rows}\n")
        label = ", label: flag" if owner == 0 else ""
        lines.append(f"    o{owner}: {{file: {folder}/o{owner}.csv, key: id, match: {folder}/o{owner}.match{label}}}")
    (folder / "million.yaml").write_text("\n".join(lines) + "\n")
    return folder / "million.yaml"


def memory_mb(root: int) -> tuple[float, float]:
    """Return RSS and PSS in MB, summed over a process and all its descendants."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(stat.parent.name))
    total, waiting = [0.0, 0.0], [root]
    while waiting:
        process = waiting.pop()
        waiting += children[process]
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        for place, name in enumerate(("Rss", "Pss")):
            found = re.search(rf"^{name}: +(\d+)", text, re.MULTILINE)
            total[place] += int(found[1]) / 1024 if found else 0
    return total[0], total[1]


def main() -> None:
    """Write, match, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--owners", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    config = write_tables(arguments.folder, arguments.keys, arguments.owners)
    for earlier in arguments.folder.glob("*.match"):
        earlier.unlink()
    command = [sys.executable, "-m", "vfl", "align", str(config), "--processes", "--run-dir"]
    started_s = time.monotonic()
    process = subprocess.Popen([*command, str(arguments.folder / "run")])
    most_rss, most_pss = 0.0, 0.0
    while process.poll() is None:
        rss, pss = memory_mb(process.pid)
        most_rss, most_pss = max(most_rss, rss), max(most_pss, pss)
        time.sleep(POLL_S)
    result = {"keys": arguments.keys, "owners": arguments.owners, "exit_code": process.returncode}
    result |= {"seconds": time.monotonic() - started_s, "most_rss_mb": most_rss, "most_pss_mb": most_pss}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
