"""The processes between which round trips are timed: what they send back is what came."""

import os

from parties.benchmarks.bare_echo import bare_echoing
from parties.benchmarks.workbench import echoing


def test_what_is_sent_comes_back(configure):
    content = os.urandom(1_500_000)
    config = configure()
    with echoing(config) as echo, bare_echoing(config) as bare:
        assert bytes(echo(content)) == content
        assert bare(content, 2) == content
