"""The table at the end of a horizontal run."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from vfl.amounts import amount
from vfl.cli import numbers_table


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return what a run reached, and what the clients that took part have cost: in all, and the median and largest."""
    clients = list(summary["parties"].values())
    table = numbers_table(
        f"test accuracy {summary['test_accuracy']:.2%} after {summary['rounds']} rounds, "
        f"{summary['wall_time_s']:.0f} s",
        ("", "all clients", "median client", "largest"),
        f"simulated time {summary['simulated_time_s']:.1f} s; {len(clients)} clients took part",
    )
    quantities = {
        "samples": ("samples", ""),
        "sent up": ("uplink_bytes", "B"),
        "sent down": ("downlink_bytes", "B"),
        "MACs": ("train_macs", ""),
        "time": ("train_time_s", "s"),
    }
    for heading, (key, unit) in quantities.items():
        values = sorted(client[key] for client in clients) or [0]
        shown = (sum(values), values[len(values) // 2], values[-1])
        table.add_row(heading, *(f"{amount(value)}{unit}" for value in shown))
    return table
