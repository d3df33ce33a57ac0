"""A connection that is cut, half-open or stalled: found out, mended, and the training's bits stay the same."""

import signal
from collections.abc import Callable

import pytest
from shorthand import release

from scripts.lab.benchmarks.shaped_link import ShapedLink
from vfl.parties.network.tls.certificates import SERVER

IN_ROUND_2 = 4
"""The last of the first two rounds' exchanges."""
FAULTS: dict[str, Callable[[ShapedLink], None]] = {
    "cut": ShapedLink.cut,
    "half-open: the party hears nothing": ShapedLink.half_open,
    "stalled both ways": ShapedLink.stall,
}


@pytest.mark.parametrize("fault", ["cut", *(release(each) for each in FAULTS if each != "cut")])
def test_a_connection_breaks_in_a_round(federate, in_process, fault: str):
    federation = federate(network={"heartbeat_s": 0.3, "silence_s": 6})
    host, port = federation.configs[SERVER].network.listen.split(":")
    with ShapedLink((host, int(port))) as link:
        federation.start(SERVER)
        federation.start("party_1")
        federation.start("party_2", ("embeds", IN_ROUND_2, "SIGSTOP"), extra=(f"network.server=127.0.0.1:{link.port}",))
        federation.wait_until_stopped("party_2")
        FAULTS[fault](link)
        federation.signal("party_2", signal.SIGCONT)
        federation.wait_for_line(SERVER, "party_2 is lost: ")
        federation.wait_for_line("party_2", "dialling again")
        link.restore()
        federation.finish()
        federation.check_ended()
    assert federation.log(SERVER).count("party_2 joined") >= 2
    assert federation.outcome() == in_process()
