# SPDX-License-Identifier: Apache-2.0
"""The one table of settings. Command line, GPUSTROBE_* variables, YAML files, docs/settings.md and tests all read it.

Precedence: command line, then environment, then the YAML file (--config or GPUSTROBE_CONFIG; otherwise the user's file
over /etc/gpustrobe/config.yaml), then the default. Names that nobody knows are reported with the nearest known one.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustrobe.agent.config_file import default_files, read_yaml, text_of
from gpustrobe.agent.errors import UsageError
from gpustrobe.agent.kinds import FILE, NAME, PAIRS, PATH, SWITCH, Kind, address, choice, duration, percent, size, whole

PREFIX = "GPUSTROBE_"
# Read elsewhere, before settings exist.
OTHER_VARIABLES = {"GPUSTROBE_CONFIG", "GPUSTROBE_DEBUG", "GPUSTROBE_REQUIRE"}  # the last: tests/conftest.py
# Kubernetes sets GPUSTROBE_STORE_PORT=tcp://... and kin for a Service named gpustrobe-store: never ours, so no setting
# ends like that.
SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT|PORT)(_.*)?$")


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # as in YAML; GPUSTROBE_NAME in the environment; --name-with-dashes unless `flags` says otherwise
    kind: Kind
    default: str | Callable[[Mapping[str, str], int], str]  # text, or from (environment, effective uid)
    help: str
    reason: str  # why this default
    commands: tuple[str, ...]
    flags: tuple[str, ...] = ()
    default_text: str = ""  # for help and docs where the default is computed

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def options(self) -> tuple[str, ...]:
        dashed = self.name.replace("_", "-")
        return self.flags or ((f"--{dashed}/--no-{dashed}",) if self.kind is SWITCH else (f"--{dashed}",))


def _state_folder(environment: Mapping[str, str], uid: int) -> str:
    if uid == 0:
        return "/var/lib/gpustrobe"
    home = environment.get("HOME") or Path.home()
    return str(Path(environment.get("XDG_STATE_HOME") or Path(home, ".local/state"), "gpustrobe"))


def _cache_folder(environment: Mapping[str, str], uid: int) -> str:
    if uid == 0:
        return "/var/cache/gpustrobe"
    home = environment.get("HOME") or Path.home()
    return str(Path(environment.get("XDG_CACHE_HOME") or Path(home, ".cache"), "gpustrobe"))


AGENTS = ("up", "agent")
STORES = ("up", "store")
# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("rate", whole(1, 20_000), "100",
            "Samples a second on each CPU.",
            "10 ms resolves what people look for; cost grows in step with it.",
            (*AGENTS, "record", "doctor"), ("-F", "-r", "--rate")),
    Setting("off_cpu", SWITCH, "off",
            "Time where threads wait, too: locks, disk, network, the run queue (record: instead of CPU).",
            "It runs at each context switch; docs/decisions/off-cpu.md says what that costs.",
            (*AGENTS, "record")),
    Setting("off_cpu_threshold", duration(0, 60), "1ms",
            "With off_cpu: shorter waits are counted, not recorded.",
            "Waits below it are many and add up to little.",
            (*AGENTS, "record")),
    Setting("store", address(4317), "127.0.0.1:4317",
            "OTLP/gRPC receiver that gets profiles and metrics.",
            "The port OpenTelemetry assigns to OTLP over gRPC.",
            ("agent", "doctor")),
    Setting("api", address(7070), "127.0.0.1:7070",
            "HTTP address of the store to ask.",
            "Where `gpustrobe up` and `gpustrobe store` listen.",
            ("query",), ("--store",)),
    Setting("http", address(7070, "0.0.0.0"), "127.0.0.1:7070",
            "Listen here for the page and the HTTP API.",
            "Profiles show what runs on a machine, so nobody else sees them until asked to.",
            STORES),
    Setting("grpc", address(4317, "0.0.0.0"), "127.0.0.1:4317",
            "Listen here for agents (OTLP over gRPC).",
            "As for http.",
            STORES),
    Setting("data", PATH, _state_folder,
            "Folder of the store's database and the agent's spool.",
            "Where the system expects state that must survive a restart.",
            (*AGENTS, "store", "doctor"),
            default_text="/var/lib/gpustrobe for root, else $XDG_STATE_HOME/gpustrobe"),
    Setting("retention", duration(60, 10 * 365 * 86400.0, off=True), "7d",
            "Forget data older than this; 0 keeps it.",
            "A week holds the incident and the week before a release.",
            STORES),
    Setting("max_size", size(64 * 10**6, off=True), "10GB",
            "Forget the oldest data once the database is larger; 0 sets no limit.",
            "A default that fits the system disk of any node.",
            STORES),
    Setting("export_interval", duration(1, 60), "5s",
            "Send a batch of 1-second windows this often.",
            "Names and tables are paid once a batch; the page is at most this much behind.",
            AGENTS),
    Setting("queue_size", size(1 << 20), "32MiB",
            "Memory for batches while the store is away.",
            "A quarter of an hour of a mixed load (41 kB a second, two cores), and bounded.",
            AGENTS),
    Setting("spool_size", size(1 << 20, off=True), "256MiB",
            "Disk for batches while the store is away; 0 keeps none on disk.",
            "Almost two hours of a mixed load; the oldest go first, and are counted.",
            AGENTS),
    Setting("tls", SWITCH, "off",
            "Speak TLS to the receiver; naming one of the files below turns it on.",
            "A store on the same machine needs none.",
            ("agent",)),
    Setting("ca_file", FILE, "",
            "Certificates that sign the receiver's, instead of the system's.",
            "Inside a cluster certificates are seldom public.",
            ("agent",)),
    Setting("cert_file", FILE, "",
            "Our certificate, for receivers that ask for one (mTLS).",
            "Only where the receiver asks.",
            ("agent",)),
    Setting("key_file", FILE, "",
            "The key of cert_file.",
            "As for cert_file.",
            ("agent",)),
    Setting("token_file", FILE, "",
            "File with a bearer token; read again when it changes.",
            "Tokens of service accounts are renewed every hour.",
            ("agent",)),
    Setting("headers", PAIRS, "",
            "Further headers of each request.",
            "Receivers with several tenants tell them apart by one.",
            ("agent",)),
    Setting("gzip", SWITCH, "off",
            "Compress what is sent.",
            "Costs more CPU than it saves on a local network.",
            ("agent",)),
    Setting("gpu", SWITCH, "on",
            "Read GPUs through NVML.",
            "Costs little, and says so once where there is no driver.",
            AGENTS),
    Setting("gpu_interval", duration(0.1, 60), "1s",
            "Read each GPU this often.",
            "As fine as profiles' windows, so both can be laid side by side.",
            AGENTS),
    Setting("gpu_kernels", choice("auto", "off"), "auto",
            "GPU time of processes that have the injected library (gpustrobe run -- CMD).",
            "Costs nothing where no such process runs.",
            (*AGENTS, "record")),
    Setting("gpu_mode", choice("auto", "windows", "sessions", "on-demand", "always"), "auto",
            "When kernels are recorded; auto: as the process's CUPTI allows at least cost (record: always).",
            "CUPTI's cost differs much between versions.",
            (*AGENTS, "record")),
    Setting("gpu_budget", percent(0.0001, 1), "1%",
            "Share of a process's time that recording its kernels may cost; the duty follows.",
            "Less than people notice.",
            (*AGENTS, "record")),
    Setting("gpu_duty", percent(0.001, 1), "10%",
            "Share of the time in recording windows, at most.",
            "Totals of a minute are within 15 to 27 % then, a day's within one.",
            (*AGENTS, "record")),
    Setting("gpu_period", duration(0.1, 2), "1s",
            "One recording window in each such period, at a random moment.",
            "As fine as profiles' windows.",
            (*AGENTS, "record")),
    Setting("gpu_counting", SWITCH, "off",
            "Count every launch exactly, which makes totals exact to 1 %.",
            "Costs a callback for each launch, in and out of windows.",
            (*AGENTS, "record")),
    Setting("gpu_rules", FILE, "",
            "YAML file with rules for short kernel names and categories.",
            "Own kernels have names only their authors know how to shorten.",
            (*AGENTS, "record")),
    Setting("metrics", address(9407, "0.0.0.0", off=True), "off",
            "Serve the agent's Prometheus metrics here.",
            "A port is opened only when asked for.",
            AGENTS),
    Setting("node", NAME, lambda environment, uid: socket.gethostname(),
            "Name of this node in all data.",
            "In a container the host name is the pod's, so Kubernetes passes the node's.",
            AGENTS, default_text="host name"),
    Setting("symbol_cache", PATH, _cache_folder,
            "Folder for names found once, by build id.",
            "Reading debug information again costs seconds.",
            (*AGENTS, "record", "dump"),
            default_text="/var/cache/gpustrobe for root, else $XDG_CACHE_HOME/gpustrobe"),
    Setting("log", choice("text", "json"), "text",
            "How log lines look on standard error.",
            "People read text; log collectors read json.",
            AGENTS),
)
# fmt: on
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Settings:
    """Effective values by name, also as attributes; `sources` says where each comes from."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def for_command(command: str) -> tuple[Setting, ...]:
    return tuple(setting for setting in SETTINGS if command in setting.commands)


def nearest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_names(environment: Mapping[str, str], files: Mapping[Path, Mapping[str, Any]]) -> list[str]:
    """A sentence for each name that no setting has."""
    found = [
        f"{path}: unknown setting {key}{nearest(key.replace('-', '_'), list(BY_NAME))}"
        for path, content in files.items()
        for key in content
        if key.replace("-", "_") not in BY_NAME
    ]
    variables = {setting.variable for setting in SETTINGS} | OTHER_VARIABLES
    found += [
        f"unknown variable {name}{nearest(name, sorted(variables))}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in variables and not SERVICE_LINK.search(name)
    ]
    return found


def _layers(environment: Mapping[str, str], files: Mapping[Path, Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Name -> (source, what was written) of environment and files, the stronger replacing the weaker."""
    layers: dict[str, tuple[str, Any]] = {}
    for path, content in files.items():
        layers.update({key.replace("-", "_"): (str(path), value) for key, value in content.items()})
    layers.update(
        {
            setting.name: (setting.variable, environment[setting.variable])
            for setting in SETTINGS
            if environment.get(setting.variable)
        }
    )
    return layers


def load(
    command: str | None,
    given: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    config: str | None = None,
    uid: int | None = None,
    problems: list[str] | None = None,
) -> Settings:
    """Effective settings of `command` (None: all). `given` holds the command line's parsed values; None: not given.

    A bad value is a UsageError that names its source. With `problems`, it is collected there, as are unknown names.
    """
    environment = os.environ if environment is None else environment
    uid = os.geteuid() if uid is None else uid
    config = config or environment.get("GPUSTROBE_CONFIG")
    paths = [Path(config)] if config else [path for path in default_files(environment) if os.access(path, os.F_OK)]
    files = {path: read_yaml(path) for path in paths}
    layers = _layers(environment, files)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS if command is None else for_command(command):
        if given.get(setting.name) is not None:
            values[setting.name], sources[setting.name] = given[setting.name], "command line"
            continue
        default = setting.default if isinstance(setting.default, str) else setting.default(environment, uid)
        source, written = layers.get(setting.name, ("default", default))
        try:
            values[setting.name], sources[setting.name] = setting.kind.parse(text_of(written)), source
        except ValueError as error:
            if problems is None:
                raise UsageError(f"{source}: {setting.name}: {error}.", f"{setting.name}: {setting.help}") from error
            problems.append(f"{source}: {setting.name}: {error}")
    unknown = unknown_names(environment, files)
    if problems is not None:
        problems.extend(unknown)
    return Settings(values, sources, tuple(unknown))


INTRODUCTION = """\
<!-- Generated by `make generate` from agent/config.py. -->
# Settings

Each can be given on the command line, as an environment variable, or in a YAML file (one `name: value` a line); the
first of these wins, then the default. Files: `--config FILE` or `GPUSTROBE_CONFIG`; otherwise
`$XDG_CONFIG_HOME/gpustrobe/config.yaml` over `/etc/gpustrobe/config.yaml`. `gpustrobe config check FILE` prints what
holds and where it comes from. Durations: `5s`, `90m`, `1h30m`. Sizes: `512MB`, `1GiB`. Addresses: `HOST:PORT`,
`[IPV6]:PORT`. Switches: `on`, `off`.

| name | option | variable | default | what | why | commands |
|---|---|---|---|---|---|---|
"""


def markdown() -> str:
    """docs/settings.md."""
    return INTRODUCTION + "".join(_row(setting) for setting in SETTINGS)


def _row(setting: Setting) -> str:
    options = " ".join(f"`{option}`" for option in setting.options)
    default = setting.default_text or str(setting.default) or "none"
    cells = (f"`{setting.name}`", options, f"`{setting.variable}`", default, setting.help, setting.reason)
    return f"| {' | '.join(cells)} | {', '.join(setting.commands)} |\n"
