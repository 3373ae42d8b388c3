# SPDX-License-Identifier: Apache-2.0
import json
import re
from pathlib import Path

import pytest
from gpustrobe.agent import config
from gpustrobe.agent.config import BY_NAME, SETTINGS, load
from gpustrobe.agent.errors import UsageError
from gpustrobe.agent.units import (
    Address,
    parse_address,
    parse_duration,
    parse_size,
    show_duration,
    show_size,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture
def environment(tmp_path):
    """No file of this machine is read."""
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("2h", 7200), ("1h30m", 5400), ("250ms", 0.25), ("90", 90), ("1.5m", 90), ("7d", 604800), (" 3S ", 3)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "s", "-5s", "5s-", "1h 30", "nan", "1e3"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512 * 10**6), ("1GiB", 2**30), ("512Mi", 512 * 2**20), ("10g", 10**10), ("4096", 4096), ("1.5kB", 1500)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "12 parsecs", "1e9"])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["5s", "2h", "7d", "250ms", "90s", "0s"])
def test_durations_come_back_as_typed(text):
    assert parse_duration(show_duration(parse_duration(text))) == parse_duration(text)


@pytest.mark.parametrize("text", ["10GB", "1GiB", "256MiB", "32MiB", "64kB", "1TB", "512B"])
def test_sizes_come_back_as_typed(text):
    assert show_size(parse_size(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("[::1]:7070", Address("::1", 7070)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("store", Address("store", 4317)),
        ("[::1]", Address("::1", 4317)),
        (":9000", Address("0.0.0.0", 9000)),
        ("host:0", Address("host", 0)),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text, 4317, "0.0.0.0") == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "host:99999", "::1:7070", "host:abc", "http://host:1", "host:-1", "a b:1", "[::1:7"]
)
def test_no_addresses(text):
    with pytest.raises(ValueError, match=r"is no address|in brackets"):
        parse_address(text, 7070)


def test_precedence_command_line_environment_file_default(tmp_path, environment):
    file = write(tmp_path / "a.yaml", "rate: 20\nexport_interval: 10s\nqueue_size: 8MiB\n")
    environment |= {"GPUSTROBE_RATE": "50", "GPUSTROBE_EXPORT_INTERVAL": "7s"}
    settings = load("agent", {"rate": 99, "store": None}, environment, config=file, uid=0)
    assert (settings.rate, settings.export_interval, settings.queue_size) == (99, 7.0, 8 << 20)
    assert settings.store == Address("127.0.0.1", 4317)
    assert settings.sources["rate"] == "command line"
    assert settings.sources["export_interval"] == "GPUSTROBE_EXPORT_INTERVAL"
    assert settings.sources["queue_size"] == file
    assert settings.sources["store"] == "default"


def test_users_file_lies_over_the_systems(tmp_path, environment, monkeypatch):
    system = write(tmp_path / "etc.yaml", "rate: 20\ngpu: off\n")
    own = write(tmp_path / "xdg/gpustrobe/config.yaml", "rate: 30\n")
    assert config.default_files(environment) == [Path("/etc/gpustrobe/config.yaml"), Path(own)]
    monkeypatch.setattr(config, "default_files", lambda _: [Path(system), Path(own)])
    settings = load("agent", {}, environment)
    assert (settings.rate, settings.gpu) == (30, False)


def test_yaml_values_mean_what_the_same_text_means(tmp_path, environment):
    file = write(tmp_path / "a.yaml", "export-interval: 2\nspool_size: 0\ngpu: no\nmetrics: ':9407'\nnode: 12\n")
    settings = load("up", {}, environment, config=file, uid=0)
    assert (settings.export_interval, settings.spool_size, settings.gpu, settings.node) == (2.0, 0, False, "12")
    assert settings.metrics == Address("0.0.0.0", 9407)


@pytest.mark.parametrize(
    "text", ["rate: [1]\n", "rate: 0\n", "rate: abc\n", "rate: 1.5\n", "rate: {a: 1}\n", "rate:\n"]
)
def test_a_bad_value_names_its_file(tmp_path, environment, text):
    file = write(tmp_path / "a.yaml", text)
    with pytest.raises(UsageError, match=re.escape(f"{file}: rate: ")):
        load("agent", {}, environment, config=file)


def test_a_bad_variable_names_itself(environment):
    with pytest.raises(UsageError, match=r"GPUSTROBE_STORE: store: 'http://x:1' is no address"):
        load("agent", {}, environment | {"GPUSTROBE_STORE": "http://x:1"})


def test_a_bad_value_of_another_command_is_none_of_ours(environment):
    assert load("query", {}, environment | {"GPUSTROBE_RATE": "abc"}).api.port == 7070


@pytest.mark.parametrize(
    ("text", "place"),
    [("a: b: c\n", "line 1"), ("rate: 1\n\t- x\n", "line 2"), ("- 1\n", "not a list of"), ("\x00", "a.yaml")],
)
def test_a_file_that_is_no_settings_file(tmp_path, environment, text, place):
    with pytest.raises(UsageError, match=place):
        load("agent", {}, environment, config=write(tmp_path / "a.yaml", text))


def test_a_file_that_is_not_there(environment):
    with pytest.raises(UsageError, match=r"/nowhere/x\.yaml: No such file"):
        load("agent", {}, environment, config="/nowhere/x.yaml")


def test_unknown_names_are_reported_with_the_nearest(tmp_path, environment):
    file = write(tmp_path / "a.yaml", "raet: 20\nzzzzzz: 1\n")
    settings = load("agent", {}, environment | {"GPUSTROBE_EXPORT_INTERVALL": "1s"}, config=file)
    assert settings.warnings == (
        f"{file}: unknown setting raet; did you mean rate?",
        f"{file}: unknown setting zzzzzz",
        "unknown variable GPUSTROBE_EXPORT_INTERVALL; did you mean GPUSTROBE_EXPORT_INTERVAL?",
    )


def test_kubernetes_service_links_are_not_ours(environment):
    links = {
        "GPUSTROBE_STORE_SERVICE_HOST": "10.0.0.1",
        "GPUSTROBE_STORE_PORT": "tcp://10.0.0.1:7070",
        "GPUSTROBE_STORE_PORT_7070_TCP_ADDR": "10.0.0.1",
        "GPUSTROBE_PORT": "tcp://10.0.0.1:7070",
        "GPUSTROBE_SERVICE_PORT_HTTP": "7070",
    }
    assert load("agent", {}, environment | links).warnings == ()
    assert not [s.variable for s in SETTINGS if config.SERVICE_LINK.search(s.variable)]


def test_data_and_cache_follow_user_and_xdg(environment):
    assert load("up", {}, environment, uid=0).data == Path("/var/lib/gpustrobe")
    home = environment["HOME"]
    assert load("up", {}, environment, uid=1000).data == Path(home, ".local/state/gpustrobe")
    assert load("up", {}, environment | {"XDG_STATE_HOME": "/s"}, uid=1000).data == Path("/s/gpustrobe")
    assert load("up", {}, environment | {"XDG_CACHE_HOME": "/c"}, uid=1000).symbol_cache == Path("/c/gpustrobe")


def test_problems_are_collected(tmp_path, environment):
    file = write(tmp_path / "a.yaml", "rate: 0\nretention: soon\nstroe: x\n")
    problems = []
    settings = load(None, {}, environment, config=file, problems=problems)
    assert problems == [
        f"{file}: rate: '0' is not a whole number from 1 to 20000",
        f"{file}: retention: 'soon' is no duration; write it as 5s, 90m, 2h or 1h30m",
        f"{file}: unknown setting stroe; did you mean store?",
    ]
    assert "rate" not in settings.values
    assert settings.max_size == 10**10


def test_the_table_is_whole():
    assert len(BY_NAME) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.help.endswith(".") and setting.reason.endswith("."), setting.name
        assert setting.commands and re.fullmatch(r"[a-z_]+", setting.name)
        default = setting.default if isinstance(setting.default, str) else setting.default({"HOME": "/h"}, 1)
        value = setting.kind.parse(default)
        assert setting.kind.parse(setting.kind.show(value)) == value, setting.name
        assert isinstance(setting.default, str) or setting.default_text, setting.name


def test_every_setting_is_an_option_of_its_commands():
    from gpustrobe.agent.cli import COMMANDS, gpustrobe

    for name in {command for setting in SETTINGS for command in setting.commands}:
        assert name in COMMANDS
        command = gpustrobe.get_command(None, name)
        groups = command.commands.values() if hasattr(command, "commands") else [command]
        for one in groups:
            flags = {flag for option in one.params for flag in option.opts}
            for setting in config.for_command(name):
                assert set(setting.options[0].split("/")[:1]) <= flags, (name, setting.name)
            assert "--config" in flags


def test_the_documentation_is_the_table():
    assert (DOCS / "settings.md").read_text() == config.markdown()
    for setting in SETTINGS:
        assert f"`{setting.variable}`" in config.markdown()


def test_json_of_config_check_is_whole(environment, tmp_path, monkeypatch, capsys):
    from gpustrobe.agent.commands.config_check import check

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = write(tmp_path / "a.yaml", "rate: 25\n")
    assert check.main([file, "--json"], standalone_mode=False) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["settings"]["rate"] == {"value": "25", "source": file}
    assert set(answer["settings"]) == set(BY_NAME) and answer["problems"] == []
