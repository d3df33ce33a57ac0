"""Audit trainings with and without own classifiers: python -m scripts.lab.owners.audit ROWS.csv.

Tables are `quickstart_tables` without lightweighting, images the digits of `quickstart` with the small CNN of width
0.25. Both label protocols, seeds 0 to 2. A row is an attack's result beside its control's (`lvfl audit`); runs that the
file has are not repeated.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import vfl
from scripts.lab.peers.environment import add_row, rows_of

WHOLE: dict[str, Any] = {"lightweighting.alpha": 0.0, "lightweighting.beta": 0.0, "threads": 1}
DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "tables": ("quickstart_tables", WHOLE),
    "images": ("quickstart", {**WHOLE, "models.feature": {"kind": "cnn", "width": 0.25, "embedding_size": 64}}),
}


def main() -> None:
    """Add the rows of the runs that the file lacks."""
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1])
    for seed, (data, (base, settings)), labels, weight in product(
        range(3), DATA.items(), ("server", "shared"), (0.0, 1.0)
    ):
        key = {"data": data, "labels": labels, "auxiliary": f"{weight:g}", "seed": str(seed)}
        if any(key.items() <= row.items() for row in rows_of(path)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            chosen = {**settings, "seed": seed, "training.labels": labels, "training.auxiliary": weight}
            run = vfl.train(base, chosen, run_dir=Path(folder) / "run")
            subprocess.run(["lvfl", "audit", str(run.folder)], check=True, stdout=subprocess.DEVNULL)
            findings = json.loads((run.folder / "leakage.json").read_text())["findings"]
        for finding in findings:
            shown = {name: finding[name] for name in ("attacker", "attack", "measure", "known")}
            values = {name: round(finding[name]["value"], 4) for name in ("found", "control")}
            add_row(path, {**key, **shown, **values})


if __name__ == "__main__":
    main()
