"""The service of scores as a process: the parties' port, the scorer and HTTP, from start to signal."""

import asyncio
import gc
import signal
from pathlib import Path
from types import FrameType

from rich.console import Console

from vfl.config import ExperimentConfig
from vfl.parties.network.server.hub import Hub, spare_files
from vfl.parties.network.tls.certificates import SERVER
from vfl.parties.network.training_terms import expected_to_serve
from vfl.parties.network.transport.listening import bounded, listening
from vfl.parties.network.transport.security import load_identity
from vfl.parties.serving.client_connection import PunctualLoop
from vfl.parties.serving.http import MOST_CONNECTIONS, http_server
from vfl.parties.serving.scorer import Scorer
from vfl.runs.run_folder import check_folder, only_process_in, run_to_serve


def serve_scores(run_dir: Path, config: ExperimentConfig, *, insecure: bool, console: Console) -> None:
    """Serve the scores of a run by key until a signal ends it.

    The parties do not learn when it ends: they dial until it is back. Raises ConfigError for a run or settings that
    cannot be served and for an address that cannot be bound.
    """
    check_folder(run_dir, config, "RUN")
    run = run_to_serve(run_dir)
    tls = load_identity(SERVER, config.network, insecure=insecure)
    most = spare_files(MOST_CONNECTIONS)
    expected = expected_to_serve(config)
    hub = Hub(run, expected, config.network, tls, log=console.print, folder=run_dir, spared=most)
    scorer = Scorer(run_dir, config, hub, console.print)

    def reload(_number: int, _frame: FrameType | None) -> None:
        scorer.reload()

    signal.signal(signal.SIGHUP, reload)
    gc.freeze()  # else a request that makes many objects has all those of PyTorch looked through, for half a second
    http = http_server(scorer)
    one_loop = asyncio.Runner(loop_factory=PunctualLoop)
    with only_process_in(run_dir), listening("serving.listen", config.serving.listen) as sockets, one_loop as runner:
        runner.run(hub.start())
        scoring = runner.get_loop().create_task(scorer.run())
        where = f"{'https' if config.serving.certificate else 'http'}://{config.serving.listen}"
        console.print(
            f"{config.name}: run {run}, version {scorer.version.digest[:12]}; parties at {config.network.listen}"
        )
        console.print(f"scores at {where}/v1/predict, their interface at {where}/docs")
        try:
            runner.run(http.serve(bounded(sockets, most)))
        finally:
            scorer.stop()
            runner.run(_end(scoring, hub))


async def _end(scoring: asyncio.Task[None], hub: Hub) -> None:
    await scoring
    await hub.stop()
