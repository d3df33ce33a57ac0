"""Write what each process of an experiment holds: lvfl split-data CONFIG --out DIR [key=value ...].

  DIR/PARTY.safetensors           ids and features of one party: its data.file
  DIR/labels.safetensors          ids and labels: the server's data.file
  DIR/shared_labels.safetensors   ids and labels of training: the parties' data.labels_file, with training.labels=shared

Ids and order of the samples are drawn by a secret, so that they reveal nothing about the labels: a random one that is
not stored, or that of --secret FILE. Give every owner its own file, and the secret to none.

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import secrets
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vfl.base.errors import ConfigError
from vfl.console import DONE, OneLineParser, command

SECRET_BYTES = 32


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    parser.add_experiment("seed=1")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the files, made with 0700")
    parser.add_argument("--secret", type=Path, metavar="FILE", help="32 bytes to draw by, created (0600) if missing")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")


def make_secret(path: Path | None) -> bytes:
    """Return the secret in a file, which is created if necessary; a new secret for None."""
    from vfl.data.files import PRIVATE
    from vfl.runs.atomic import write_durably

    fresh = secrets.token_bytes(SECRET_BYTES)
    if path is None:
        return fresh
    if not path.exists():
        write_durably(path, [fresh], PRIVATE)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"--secret: {path} holds {len(secret)} bytes, not {SECRET_BYTES}; name another file")
    return secret


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: Console) -> int:
    """Load, split, write, and show each file's owner."""
    from vfl.data.experiments import load_user_config

    if arguments.out.is_file():
        raise ConfigError(f"--out: {arguments.out} is a file; name a folder")
    config = load_user_config(arguments.config, arguments.overrides)
    from vfl.data.split import LABELS_FILE, SHARED_LABELS_FILE, conceal_ids, party_file, split_data, write_split
    from vfl.predict.start_from import start_of
    from vfl.runs.atomic import follow_links

    start = start_of(config, arguments.out)
    split = conceal_ids(split_data(config, start.sections if start else {}), make_secret(arguments.secret))
    shared = config.training.labels == "shared"
    paths = write_split(follow_links(arguments.out), split, shared_labels=shared, overwrite=arguments.overwrite)
    settings = {party_file(data.party): f"{data.party}: data.file" for data in split.parties}
    settings |= {LABELS_FILE: "server: data.file", SHARED_LABELS_FILE: "every party: data.labels_file"}
    table = Table("file", "setting", "size", box=None)
    for path in paths:
        table.add_row(str(path), settings[path.name], f"{path.stat().st_size / 1e6:.1f} MB")
    console.print(table)
    digests = split.labels.ids_digests()
    console.print(f"ids of {len(split.labels.train.ids)} training samples: sha256 {digests['train']}")
    console.print(f"ids of {len(split.labels.test.ids)} test samples: sha256 {digests['test']}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
