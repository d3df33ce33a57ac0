"""Network settings: what is refused, and that they never keep a run from going on."""

from pathlib import Path

import pytest

from vfl.config import ConfigError, changed_keys, dump_config, load_config, parse_config
from vfl.runs.run_folder import begin_run, check_run

SMALL = {"name": "small"}

WRONG = {
    "a silence too short for heartbeats": (
        {"network": {"heartbeat_s": 5, "silence_s": 19}},
        "network.silence_s: 19 is less than four heartbeats of 5 s; raise it",
    ),
    "an address without a port": (
        {"network": {"server": "somewhere"}},
        "network.server: 'somewhere' is no address with a port, such as 127.0.0.1:8080",
    ),
    "an address with a port that cannot be": (
        {"network": {"listen": "127.0.0.1:70000"}},
        "network.listen: '127.0.0.1:70000' has a port above 65535",
    ),
    "no time to wait": ({"network": {"wait_s": 0}}, "network.wait_s: "),
    "another policy": ({"network": {"on_party_loss": "ignore"}}, "network.on_party_loss: "),
    "a typing error": (
        {"network": {"heartbeats_s": 1}},
        "network.heartbeats_s: unknown key; did you mean 'heartbeat_s'?",
    ),
    "drop with error feedback": (
        {"network": {"on_party_loss": "drop"}, "lightweighting": {"error_feedback": True}},
        "network.on_party_loss: drop needs lightweighting.error_feedback=false",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str):
    values, message = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        parse_config(SMALL | values)
    assert str(caught.value).startswith(message)


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
    with pytest.raises(ConfigError, match=r"the configuration has changed: data.file \(None -> /.*/other\)"):
        check_run(tmp_path, parse_config(SMALL | {"data": {"file": "other"}}), resume=True)
