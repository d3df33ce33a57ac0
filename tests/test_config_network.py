"""Network settings: what is refused, and that they never keep a run from going on."""

from pathlib import Path

import pytest
from refusals import refused

from vfl.config import changed_keys, dump_config, load_config, parse_config
from vfl.runs.run_folder import begin_run, check_run

SMALL = {"name": "small"}

WRONG = {
    "a silence too short for heartbeats": (
        {"network": {"heartbeat_s": 5, "silence_s": 19}},
        ("network.silence_s", "19"),
    ),
    "an address without a port": (
        {"network": {"server": "somewhere"}},
        ("network.server", "'somewhere'", "127.0.0.1", "8080"),
    ),
    "an address with a port that cannot be": (
        {"network": {"listen": "127.0.0.1:70000"}},
        ("network.listen", "'127.0.0.1:70000'", "65535"),
    ),
    "no time to wait": ({"network": {"wait_s": 0}}, ("network.wait_s",)),
    "another policy": ({"network": {"on_party_loss": "ignore"}}, ("network.on_party_loss",)),
    "a typing error": ({"network": {"heartbeats_s": 1}}, ("network.heartbeats_s", "'heartbeat_s'")),
    "drop with error feedback": (
        {"network": {"on_party_loss": "drop"}, "lightweighting": {"error_feedback": True}},
        ("network.on_party_loss", "lightweighting.error_feedback=false"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str):
    values, message = WRONG[case]
    with refused(*message):
        parse_config(SMALL | values)


def test_settings_come_back_from_yaml(tmp_path: Path):
    config = parse_config(
        SMALL
        | {
            "network": {"server": "[::1]:7000", "tls": {"ca": "keys/ca.pem"}, "on_party_loss": "drop"},
            "data": {"file": "data/party_1.safetensors"},
        }
    )
    path = tmp_path / "small.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert load_config(path, ["network.tls.key=other.pem"]).network.tls.ca == Path("keys/ca.pem")


def test_a_run_goes_on_at_another_address_but_not_with_other_data(tmp_path: Path):
    config = parse_config(SMALL)
    begin_run(tmp_path, config)
    moved = parse_config(SMALL | {"network": {"server": "elsewhere:1234", "wait_s": 5}})
    check_run(tmp_path, moved, resume=True)
    begin_run(tmp_path, moved)
    assert changed_keys(config, moved) != []
    with refused("--resume", "data.file", "/other"):
        check_run(tmp_path, parse_config(SMALL | {"data": {"file": "other"}}), resume=True)
