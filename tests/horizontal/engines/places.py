"""What may happen to a worker of torchrun: a signal when it is about to train a client, other data, no checkpoint."""

from typing import Any

from fork_server import Strike, around


def at_client(strike: Strike) -> None:
    from vfl.horizontal.engines.sequential import SequentialEngine

    around(SequentialEngine, "_train", strike)


def with_other_data(strike: Strike) -> None:
    import vfl.horizontal.mode

    load = vfl.horizontal.mode.prepare_whole

    def load_other(source: Any) -> Any:
        data = load(source)
        data.train.features[0, 0, 0, 0] += 1
        return data

    vfl.horizontal.mode.prepare_whole = load_other  # pyright: ignore[reportPrivateImportUsage]


def without_checkpoint(strike: Strike) -> None:
    import vfl.runs.run

    vfl.runs.run.ReadOnlyStore.load_latest = lambda self: None  # pyright: ignore[reportAttributeAccessIssue]


PLACES = {"client": at_client, "other data": with_other_data, "no checkpoint": without_checkpoint}
