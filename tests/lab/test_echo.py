"""The processes that benchmarks time: what is sent comes back, and an exchange is over when it has been timed."""

import os
import time

import pytest
from shorthand import links_of

from scripts.lab.benchmarks.bare_echo import bare_echoing
from scripts.lab.benchmarks.light import make_config
from scripts.lab.benchmarks.paired import Options
from scripts.lab.benchmarks.workbench import Federation, echoing

pytestmark = pytest.mark.release


def test_what_is_sent_comes_back(configure):
    content = os.urandom(1_500_000)
    config = configure()
    with echoing(config) as echo, bare_echoing(config) as bare:
        assert bytes(echo(content)) == content
        assert bare(content, 2) == content


def test_no_party_goes_on_after_a_timed_exchange():
    with Federation(make_config(Options(pairs=1))) as federation:
        federation.next_round()
        federation.exchange()
        counted_s = [link.under_way_s for link in links_of(federation.server)]
        time.sleep(0.3)
        assert [link.under_way_s for link in links_of(federation.server)] == counted_s
