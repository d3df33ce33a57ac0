"""The vertical mode: how its experiments are built and shown, with all parties in this process."""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from rich.table import Table

from vfl.base.costs import amount, savings, sent_bytes
from vfl.base.metrics import decision_line, headline, worse_than_constant
from vfl.config import ConfigError, ExperimentConfig
from vfl.console import numbers_table
from vfl.core.costs.controllers import past_ratios
from vfl.core.local import build_in_process
from vfl.core.pruning_pictures import ShowWidths
from vfl.predict.start_from import config_to_build, start_of
from vfl.runs.mode import Built, Mode, Stage
from vfl.runs.tensorboard import REACHED


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return a run's results and costs: a row per party, the totals, and the savings in the caption."""
    positive = summary.get("positive_class")
    of_class = f"AUC, F1 and average precision are of class {positive!r}" if positive else ""
    table = numbers_table(
        f"{headline(summary)} after {summary['rounds']} rounds, {summary['wall_time_s']:.0f} s",
        ("party", "alpha", "beta", "MACs", "params", "sent up", "sent down", "time"),
        "\n".join(
            line for line in (of_class, decision_line(summary), worse_than_constant(summary), _savings(summary)) if line
        ),
    )
    parties = summary["parties"]
    for name, party in parties.items():
        table.add_row(name, f"{party['alpha']:g}", f"{party['beta']:g}", *_costs([party]))
    table.add_section()
    table.add_row("all", "", "", *_costs(parties.values()))
    return table


def _savings(summary: Mapping[str, Any]) -> str:
    """Return the lines with the savings; none of a run without lightweighting, which would read 0.0 % throughout."""
    sent = sent_bytes(summary)
    dense = summary["dense_uplink_bytes"] + summary["dense_downlink_bytes"]
    compute = savings(summary["train_macs"], summary["unpruned_train_macs"])
    up = savings(summary["uplink_bytes"], summary["dense_uplink_bytes"])
    down = savings(summary["downlink_bytes"], summary["dense_downlink_bytes"])
    asked = any(party["alpha"] or party["beta"] for party in summary["parties"].values())
    if not asked and not any(round(share, 3) for share in (compute, up, down)):
        return ""
    return (
        "saved against no lightweighting\n"
        f"compute {compute:.1%}: {amount(summary['train_macs'])} instead of "
        f"{amount(summary['unpruned_train_macs'])} multiply-accumulates (above: per sample)\n"
        f"communication {savings(sent, dense):.1%}: {amount(sent)}B instead of {amount(dense)}B "
        f"(up {up:.1%}, down {down:.1%})"
    )


def _costs(parties: Collection[Mapping[str, Any]]) -> list[str]:
    """Return the cells with the sums over some parties."""
    counts = {"macs_per_sample": "", "parameters": "", "uplink_bytes": "B", "downlink_bytes": "B"}
    cells = [f"{amount(sum(party[key] for party in parties))}{unit}" for key, unit in counts.items()]
    return [*cells, f"{sum(party['train_time_s'] for party in parties):.1f} s"]


MANY_PARTIES = 64
"""Number of parties from which building them takes long enough to be announced."""


def _build(config: ExperimentConfig, stage: Stage) -> Built:
    if len(config.parties) >= MANY_PARTIES:
        stage.console.print(f"building the models of {len(config.parties)} parties in this process; this takes a while")
    if config.lightweighting.controller.kind == "deadline" and not config.simulation.given:
        stage.console.print(
            "warning: lightweighting.controller: deadline goes by the seconds of this machine, which vary, and so may "
            "the ratios; describe the parties' machines in simulation"
        )
    if config.privacy.record:
        stage.console.print(
            "warning: privacy.record: ignored, as all parties are in this process; lvfl audit needs none"
        )
    start = start_of(config, stage.run_dir)
    server = build_in_process(
        config_to_build(config, stage.run_dir), stage.runtime, stage.progress.on_step, start=start
    ).server
    server.past_ratios = past_ratios(config, stage.run_dir)
    return Built(server, [ShowWidths(server, stage.tensorboard)])


def _check_workers(config: ExperimentConfig, workers: int) -> NoReturn:
    raise ConfigError(f"mode: torchrun shares no training of mode={config.mode}; use --processes")


VERTICAL = Mode(
    _build,
    summary_table,
    _check_workers,
    shown={
        "savings/compute": "saved so far: compute {:.1%}",
        "savings/communication": "communication {:.1%}",
        "simulated_time_s/total": "clock {:.1f} s",
    },
    front_page=REACHED | {"compute saved": "savings/compute", "communication saved": "savings/communication"},
)
