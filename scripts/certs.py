"""Make and look at the certificates of the server and the parties.

One person, usually the server's, is the authority:

  lvfl certs ca keys                                      the authority, in keys/
  lvfl certs issue keys server party_1 party_2            keys and certificates, in keys/server/, keys/party_1/, ...

and hands every owner its folder over a safe way. Or a party makes its key itself, which then never travels:

  party:      lvfl certs request mykeys party_1           mykeys/key.pem and mykeys/request.pem
  authority:  lvfl certs show request.pem                 the fingerprint: is it the one that the party sees?
  authority:  lvfl certs sign keys request.pem party_1    keys/party_1/{certificate,ca}.pem, to be sent back

To revoke an owner that has lost a key, or is to leave:

  authority:  lvfl certs revoke keys party_1              its serial numbers, in keys/deny.txt (network.tls.deny)

Exit codes: 0 done, 2 bad input (one line on stderr), 75 what may succeed later (disk, memory).
"""

import argparse
import sys
from pathlib import Path

from vfl.console import DONE, OneLineParser, ShowConsole, command
from vfl.parties.network.tls import folders
from vfl.parties.network.tls.certificates import SERVER, CertificateSubject
from vfl.parties.network.tls.files import CA, CA_KEY, CERTIFICATE, DENY, KEY, REQUEST

AUTHORITY_DAYS = 3650
DAYS = 365
WHO = f"'{SERVER}', or a party's name as the experiment has it"


def add_arguments(parser: OneLineParser) -> None:
    """Add the command's arguments."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="{ca,issue,request,sign,show,revoke}")

    def add(name: str, help_text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help_text, description=help_text)

    ca = add("ca", "make the authority that signs all certificates")
    ca.add_argument("keys", type=Path, metavar="KEYS", help="folder of the authority")
    ca.add_argument("--name", default="LVFL authority", help="what certificates call it (%(default)s)")
    _add_days(ca, AUTHORITY_DAYS)
    _add_overwrite(ca, "replace an authority: what the old one signed becomes worthless")

    issue = add("issue", "make keys and certificates of the server or of parties")
    issue.add_argument("keys", type=Path, metavar="KEYS", help="folder of the authority")
    issue.add_argument("names", nargs="+", metavar="NAME", help=WHO)
    _add_hosts(issue)
    _add_days(issue, DAYS)
    _add_overwrite(issue, "renew: replace key and certificate")

    request = add("request", "make a key, and a request to have it certified")
    request.add_argument("folder", type=Path, metavar="FOLDER", help="the owner's own; an existing key is kept")
    request.add_argument("name", metavar="NAME", help=WHO)
    _add_hosts(request)
    _add_overwrite(request, "replace an existing key")

    sign = add("sign", "certify the key of a request")
    sign.add_argument("keys", type=Path, metavar="KEYS", help="folder of the authority")
    sign.add_argument("request", type=Path, metavar="REQUEST", help="the file that the owner sent")
    sign.add_argument("name", metavar="NAME", help="the owner that sent it")
    _add_hosts(sign)
    _add_days(sign, DAYS)
    _add_overwrite(sign, "renew: replace the certificate")

    show = add("show", "check and describe PEM files and folders")
    show.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a PEM file, or a folder as made here")

    revoke = add("revoke", "put all certificates of an owner on a deny list")
    revoke.add_argument(
        "keys", type=Path, nargs="?", default=Path("keys"), metavar="KEYS", help="folder of the authority (%(default)s)"
    )
    revoke.add_argument("name", metavar="NAME", help=WHO)
    revoke.add_argument("--deny", type=Path, metavar="FILE", help=f"the list that network.tls.deny names (KEYS/{DENY})")


@command(__doc__, add_arguments)
def main(arguments: argparse.Namespace, console: ShowConsole) -> int:
    """Run one subcommand and show its result."""
    match arguments.command:
        case "ca":
            folders.make_authority(arguments.keys, arguments.name, arguments.days, overwrite=arguments.overwrite)
            _show(arguments.keys, console)
            console.print(f"whoever reads {arguments.keys / CA_KEY} can admit anybody: keep it on this machine")
        case "issue":
            owners = [CertificateSubject(name, tuple(arguments.hosts)) for name in arguments.names]
            for folder in folders.issue(arguments.keys, owners, arguments.days, overwrite=arguments.overwrite):
                _show(folder, console)
            console.print("next: give every owner its folder over a channel that nobody else can read")
        case "request":
            owner = CertificateSubject(arguments.name, tuple(arguments.hosts))
            folders.request_certificate(arguments.folder, owner, overwrite=arguments.overwrite)
            _show(arguments.folder / REQUEST, console)
            console.print(
                f"next: send {arguments.folder / REQUEST} to the authority and compare the fingerprint by another way"
            )
        case "sign":
            owner = CertificateSubject(arguments.name, tuple(arguments.hosts))
            _show(arguments.request, console)
            folder = folders.sign_request(
                arguments.keys, arguments.request, owner, arguments.days, overwrite=arguments.overwrite
            )
            _show(folder / CERTIFICATE, console)
            console.print(f"next: send {CERTIFICATE} and {CA} of {folder} back; they go beside the owner's {KEY}")
        case "revoke":
            _revoke(arguments.keys, arguments.name, arguments.deny or arguments.keys / DENY, console)
        case _:
            for path in arguments.paths:
                _show(path, console)
    return DONE


def _revoke(keys: Path, name: str, deny: Path, console: ShowConsole) -> None:
    serials, added = folders.revoke(keys, name, deny)
    for serial in serials:
        console.print(f"{serial} of {name}: {'added to' if serial in added else 'is already on'} {deny}")
    where = "every party, since all of them dial it" if name == SERVER else "the server"
    console.print(
        f"next: network.tls.deny must name this list, or a copy of it, at {where}. A running process whose "
        f"configuration names it reads it at its next heartbeat, hangs up on {name} and refuses it from then on; any "
        "other needs the setting and a restart (lvfl server --resume)"
    )
    console.print(f"to let {name} in again, with another key: lvfl certs issue or sign, with --overwrite")


def _show(path: Path, console: ShowConsole) -> None:
    console.print(f"{path}:", *folders.describe(path), sep="\n  ")


def _add_hosts(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--host",
        action="append",
        default=[],
        dest="hosts",
        metavar="HOST",
        help=f"{SERVER} only, repeatable: its host name or IP address, for clients that check what they dial (parties "
        f"check that it is {SERVER!r}, whatever its address)",
    )


def _add_days(command: argparse.ArgumentParser, default: int) -> None:
    command.add_argument("--days", type=int, default=default, help="days until it expires (%(default)s)")


def _add_overwrite(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("--overwrite", action="store_true", help=help_text)


if __name__ == "__main__":
    sys.exit(main())
