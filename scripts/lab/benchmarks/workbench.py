"""Party processes under a head server in this process, on random data, for benchmarks and the soak.

``python -m scripts.lab.benchmarks.workbench party CONFIG NAME FOLDER`` and ``... echo CONFIG NAME`` are its children.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import torch
from rich.console import Console

from scripts.lab.benchmarks.light_model import LIGHT, LightModel
from scripts.lab.benchmarks.shaped_link import Shape, ShapedLink
from scripts.lab.benchmarks.vertical import CLASSES, Stepped, random_data
from scripts.lab.peers.split_models import WIDTHS, image_half
from vfl.config import ExperimentConfig, NetworkConfig, dump_config, load_config
from vfl.config.components import FEATURE_MODELS
from vfl.core.build import build_head_server, build_roster
from vfl.data.files import LabelData, PartyData
from vfl.data.samples import Labels, Samples
from vfl.data.source import Split
from vfl.data.split import write_split
from vfl.messages.messages import SESSION, Buffer, Kind, Message, Part, PartKind
from vfl.parties.launch.local_launch import process_configs
from vfl.parties.launch.supervisor import make_keys, write_configs
from vfl.parties.network.admission import DataDigests, Expected
from vfl.parties.network.party.dialer import Dialer
from vfl.parties.network.party.party_process import run_party
from vfl.parties.network.server.connection import RemoteLink
from vfl.parties.network.server.hub import Hub
from vfl.parties.network.server.server_process import server_labels
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_terms import expected_of
from vfl.parties.network.transport.security import load_identity
from vfl.parties.network.wire.session import Hello
from vfl.runs.atomic import write_atomically
from vfl.runs.runtime import start_runtime

T = TypeVar("T")

FEATURE_MODELS.add(LIGHT, LightModel)
for name in WIDTHS:
    FEATURE_MODELS.add(f"split_{name}", lambda _spec, name=name: image_half(name))
RUN = "0123456789abcdef"
JOIN_S = 300.0
TEST_SAMPLES = 8


@dataclass(frozen=True)
class Workplace:
    """Keys and configurations of a federation, in a temporary folder."""

    folder: Path
    configs: dict[str, ExperimentConfig]

    @classmethod
    def make(cls, config: ExperimentConfig, folder: Path) -> "Workplace":
        """Write keys and one configuration per process."""
        configs = process_configs(config, folder)
        make_keys(config, folder, configs)
        write_configs(folder, configs)
        return cls(folder, configs)

    def hub(self, expected: dict[str, Expected]) -> Hub:
        """Return a hub that listens like the server and sends nothing."""
        network = self.configs[SERVER].network
        tls = load_identity(SERVER, network, insecure=False)
        return Hub(RUN, expected, network, tls, log=lambda line: None)


@dataclass(eq=False)
class Federation(Stepped):
    """Party processes and their head server within a training; a context manager."""

    config: ExperimentConfig
    """Configuration; ``threads`` are those of each party process."""
    shape: Shape | None = None
    """Shape of each party's link; None for none."""

    def __post_init__(self) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        """Start everything and wait until all parties have joined."""
        with ExitStack() as undo:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
            workplace = Workplace.make(self.config, folder)
            split = random_split(self.config)
            write_split(folder / "data", split, shared_labels=True, overwrite=False)
            labels, names = server_labels(self.config, split.labels), self.config.parties
            hub = undo.enter_context(workplace.hub(expected_of(self.config, labels.digests, TEST_SAMPLES)))
            for name in names:
                self._start_party(workplace, name, undo)
            connections = hub.wait_for(names, JOIN_S)
            links = {name: RemoteLink(connection, 1) for name, connection in connections.items()}
            roster = build_roster(links, labels.train, self.config)
            runtime = start_runtime(self.config)
            self.server = build_head_server(roster, labels.train, labels.test, self.config, runtime)
            self._at_end = undo.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        """End everything."""
        self._at_end.close()

    def exchange(self) -> None:
        """Run the next exchange, and wait for the parties, which would otherwise disturb the next timing."""
        super().exchange()
        for asked in self.server.exchanges.under_way[0]:
            if asked.reply is not None:
                asked.reply.result()

    def _start_party(self, workplace: Workplace, name: str, undo: ExitStack) -> None:
        path = workplace.folder / f"{name}.yaml"
        own = workplace.configs[name]
        if self.shape is not None:
            host, _, port = own.network.server.rpartition(":")
            link = undo.enter_context(ShapedLink((host, int(port)), self.shape))
            network = own.network.model_copy(update={"server": f"127.0.0.1:{link.port}"})
            write_atomically(path, dump_config(own.model_copy(update={"network": network})))
        folder = workplace.folder / name
        self.processes[name] = undo.enter_context(child(__name__, "party", str(path), name, str(folder)))


def random_split(config: ExperimentConfig) -> Split:
    """Return ``random_data``, split between parties and server; the first training samples also serve as test."""
    images, labels_N = random_data(config)
    ids_N, test_ids_M = torch.arange(len(labels_N)), torch.arange(TEST_SAMPLES) + len(labels_N)
    parties = (
        PartyData(name, Samples(ids_N, own), Samples(test_ids_M, own[:TEST_SAMPLES]))
        for name, own in zip(config.parties, images, strict=True)
    )
    train, test = Labels(ids_N, labels_N), Labels(test_ids_M, labels_N[:TEST_SAMPLES])
    return Split(tuple(parties), LabelData(tuple(map(str, range(CLASSES))), train, test))


@contextmanager
def echoing(config: ExperimentConfig) -> Generator[Callable[[bytes], Buffer]]:
    """Start one process that sends back what it receives; yield a function that sends and returns the reply."""
    with tempfile.TemporaryDirectory() as folder:
        workplace, name = Workplace.make(config, Path(folder)), config.parties[0]
        with (
            workplace.hub({name: Expected(0, "{}", DataDigests())}) as hub,
            child(__name__, "echo", str(workplace.folder / f"{name}.yaml"), name),
        ):
            connection = hub.wait_for((name,), JOIN_S)[name]
            connection.start_session(1)

            def there_and_back(content: bytes) -> Buffer:
                request = Message(Kind.EMBED, parts=(Part(PartKind.EMBEDDING, content),))
                return connection.order(request, lambda reply: reply.only(PartKind.EMBEDDING)).result()

            yield there_and_back


def echo(config: ExperimentConfig, name: str) -> None:
    """Send every request back until this process is ended."""
    tls = load_identity(name, config.network, insecure=False)
    hello = Message(Kind.HELLO, parts=(Hello(party=name, agreement="{}").part(),))
    network: NetworkConfig = config.network
    with Dialer(lambda: hello, network, tls, log=lambda line: None) as dialer:
        while True:
            event = dialer.inbox.get()
            assert event is not None, "without a limit of time"
            if event.message.kind not in SESSION:
                event.stream.send(replace(event.message, kind=Kind.EMBEDDING))


@contextmanager
def child(module: str, *arguments: str) -> "Generator[subprocess.Popen[bytes]]":
    """Run a module as a separate process, and kill it at the end."""
    command = [sys.executable, "-m", module, *arguments]
    root = Path(__file__).parents[3]  # where the laboratory can be imported
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, cwd=root)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    role, config_path, party, *rest = sys.argv[1:]
    if role == "echo":
        echo(load_config(Path(config_path)), party)
    else:
        run_party(load_config(Path(config_path)), party, Path(rest[0]), insecure=False, console=Console(quiet=True))
