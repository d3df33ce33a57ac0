"""The processes between which round trips are timed: what they send back is what came."""

import os

from parties.benchmarks.bare_echo import BareEcho
from parties.benchmarks.workbench import Echo


def test_what_is_sent_comes_back(configure):
    content = os.urandom(1_500_000)
    config = configure()
    with Echo(config) as echo, BareEcho(config) as bare:
        assert bytes(echo.send(content)) == content
        assert bare.send(content, 2) == content
