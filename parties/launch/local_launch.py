"""All processes of an experiment on this machine, for a first try.

RUN_DIR/                  the server's, as of any run
    processes/
        keys/             an authority of this run only, and a certificate for every process
        data/             what each process holds
        PROCESS.yaml      each process's own configuration: what one would give it on a machine of its own
        PARTY/            a party's folder: its checkpoints
        PARTY.log         what a party said
"""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from vfl.config import ConfigError, ExperimentConfig, parse_config
from vfl.config.files import lay_over
from vfl.console import PLAIN
from vfl.core.local import build_in_process
from vfl.data.files import load_label_data
from vfl.data.prediction_files import write_prediction_files
from vfl.data.source import open_source
from vfl.data.split import LABELS_FILE, SHARED_LABELS_FILE, party_file, split_data, write_split
from vfl.parties.launch.supervisor import Supervisor, make_keys, networked, party_commands, write_configs
from vfl.parties.network.tls.certificates import SERVER
from vfl.predict.open_run import SamplesWanted, check_absent, samples_table
from vfl.predict.reasons import ReasonsWanted
from vfl.predict.start_from import folder_of_process, server_start, start_of
from vfl.predict.trained_run import read_checkpoint
from vfl.runs.run_folder import PROCESSES, check_run, private_files, with_threads_of_run
from vfl.runs.runtime import start_runtime, with_threads
from vfl.runs.stored_run import Run


def run_together(config: ExperimentConfig, run_dir: Path, *, resume: bool, console: Console) -> int:
    """Start the server and all parties, wait for their end, and return the server's exit code.

    A party that is killed is restarted. Raises ValueError for data or a folder that cannot be used.
    """
    config = with_shared_threads(config, run_dir)
    folder = run_dir / PROCESSES
    configs = process_configs(config, folder)
    check_run(run_dir, configs[SERVER], resume=resume)
    prepare(config, folder, configs)
    serve = ["server", str(folder / f"{SERVER}.yaml"), "--run-dir", str(run_dir), "--log", PLAIN]
    serve += ["--resume"] if resume else []
    return Supervisor(serve, party_commands("party", folder, config.parties), folder, console).run()


def with_shared_threads(config: ExperimentConfig, run_dir: Path) -> ExperimentConfig:
    """Return the experiment with the threads that it would have in one process: each of its processes takes as many."""
    config = with_threads_of_run(run_dir, config)
    if config.threads is None and not (run_dir / "config.yaml").exists():
        build_in_process(config, start_runtime(config), start=start_of(config, run_dir))
        return with_threads(config)
    return config


def predict_together(
    run_dir: Path,
    wanted: SamplesWanted,
    out: Path | None,
    console: Console,
    reasons: ReasonsWanted | None = None,
    database: str | None = None,
) -> int:
    """Restart a run's processes, except those of absent parties, let them predict, and return the exit code.

    An owner without a table of new rows is absent. ``out`` and ``database`` are as in ``lvfl predict``. The owners, all
    of them this user, disclose their columns' ``reasons``. Raises ValueError for a run or data that cannot be used,
    PeerLost as ``check_absent``.
    """
    config, folder = trained_by_processes(run_dir)
    names, tables, data, when_absent = config.parties, wanted.tables, wanted.data, wanted.when_absent
    absent = [*wanted.absent, *(name for name in names if tables and name not in (*tables, *wanted.absent))]
    check_absent(absent, names, when_absent)
    named = ["--table", str(samples_table(config, tables))] if tables else []
    configs = process_configs(config, folder)
    if reasons is not None:
        configs = agreeing(configs, {"network.consent.reasons": "amounts"})
    prepare(config, folder, configs)
    serve = ["predict", str(run_dir), "--listen", str(folder / f"{SERVER}.yaml")]
    serve += ["--out", str(out)] if out else []
    serve += ["--database", database] if database is not None else []
    serve += [option for name in absent for option in ("--absent", name)] + ["--when-absent", when_absent]
    if reasons is not None:
        serve += ["--reasons", str(reasons.most), "--reasons-steps", str(reasons.steps)]
        serve += ["--reasons-of", reasons.of] if reasons.of is not None else []
    parties = party_commands("party", folder, [name for name in names if name not in absent])
    if tables:
        serve += named
        for name, command in parties.items():
            command += ["--samples", str(tables[name])]
    if data is not None:
        source = open_source(configs[names[0]])
        classes = len(load_label_data(folder / "data" / LABELS_FILE).classes)
        samples = folder / "samples"
        write_prediction_files(samples, names, source.read_samples(data, source.held_by(names[0]).train, classes))
        serve += ["--data", str(samples / LABELS_FILE)]
        for name, command in parties.items():
            command += ["--samples", str(samples / party_file(name))]
    return Supervisor(serve, parties, folder, console).run()


def compare_together(run_dir: Path, console: Console) -> int:
    """Restart a run's processes, let the server compare (``lvfl compare RUN --listen``), and return the exit code.

    The owners, all of them this user, agree to it. Raises ValueError for a run that cannot be used.
    """
    config, folder = trained_by_processes(run_dir)
    configs = agreeing(process_configs(config, folder), {"network.consent.importance": True})
    prepare(config, folder, configs)
    serve = ["compare", str(run_dir), "--listen", str(folder / f"{SERVER}.yaml")]
    return Supervisor(serve, party_commands("party", folder, config.parties), folder, console).run()


def agreeing(configs: Mapping[str, ExperimentConfig], agreed: Mapping[str, object]) -> dict[str, ExperimentConfig]:
    """Return the processes' configurations with further consent."""
    return {name: parse_config(lay_over(each.model_dump(), agreed)) for name, each in configs.items()}


def trained_by_processes(run_dir: Path) -> tuple[ExperimentConfig, Path]:
    """Return a run's experiment and the folder of its processes. Raises ConfigError if it was trained otherwise."""
    run, folder = Run(run_dir), run_dir / PROCESSES
    read_checkpoint(run)
    if not (folder / f"{SERVER}.yaml").exists():
        raise ConfigError(f"--processes: {run_dir} was not trained by lvfl train --processes; leave the option out")
    return run.vertical, folder


def process_configs(config: ExperimentConfig, folder: Path) -> dict[str, ExperimentConfig]:
    """Return every process's own configuration, by name. Raises ConfigError for code that is not this user's own."""
    config.models.check_noted()  # they will be files that commands are called with
    configs: dict[str, ExperimentConfig] = {}
    for name, own in networked(config, folder).items():
        values = own.model_dump()
        data = folder / "data"
        values["data"]["file"] = data / (LABELS_FILE if name == SERVER else party_file(name))
        if name != SERVER and config.training.labels == "shared":
            values["data"]["labels_file"] = data / SHARED_LABELS_FILE
        if name != SERVER:
            values["training"]["start_from"] = folder_of_process(config, name)
        configs[name] = parse_config(values)
    return configs


@private_files()
def prepare(config: ExperimentConfig, folder: Path, configs: dict[str, ExperimentConfig]) -> None:
    """Write data, keys and configurations, unless an earlier start of the run has; addresses are always new."""
    if not (folder / f"{SERVER}.yaml").exists():  # written last: what an interrupted start left is made again
        shared = config.training.labels == "shared"
        server_start(config, folder.parent)  # it refuses before any process starts
        start = start_of(config, folder.parent)
        split = split_data(config, start.sections if start else {})
        write_split(folder / "data", split, shared_labels=shared, overwrite=True)
    make_keys(config, folder, configs)
    write_configs(folder, configs)
