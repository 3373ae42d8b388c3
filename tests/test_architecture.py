# SPDX-License-Identifier: Apache-2.0
"""What docs/architecture.md promises of the tree itself: who imports whom, what is generated, which names it avoids."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agent", "bpf", "cupti", "proto", "store", "symbolizer")
MAY_IMPORT = {
    "agent": {"agent", "bpf", "cupti", "proto", "symbolizer"},
    "bpf": {"bpf", "agent.model"},
    "cupti": {"cupti", "agent.model"},
    "proto": {"proto", "agent.model"},
    "store": {"store", "proto"},
    "symbolizer": {"symbolizer", "bpf", "proto", "cupti", "agent.model"},
}
STARTS_THE_STORE = {"agent/commands/up.py", "agent/commands/store.py"}
VAGUE = re.compile(r"(^|_)(helpers?|utils?|managers?|misc|common|stuff)$")


def tracked(*patterns):
    listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


def sources():
    return [name for name in tracked("*.py") if name.split("/")[0] in FOLDERS and not name.endswith("_pb2.py")]


def imports(name):
    """Modules of gpustrobe that a file imports, anywhere in it, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "gpustrobe":
            base = node.module.removeprefix("gpustrobe").strip(".")
            found |= {base} if "." in base else {f"{base}.{alias.name}".strip(".") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.add("(relative)")
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("gpustrobe.") for alias in node.names if alias.name.startswith("gpustrobe.")
            }
    return found


@pytest.mark.parametrize("name", sources())
def test_imports_point_one_way(name):
    allowed = MAY_IMPORT[name.split("/")[0]]
    for module in imports(name):
        assert module != "(relative)", f"{name}: write absolute imports, as a grep for them shows all"
        parts = module.split(".")
        assert parts[0] in allowed or ".".join(parts[:2]) in allowed, f"{name} may not import {module}"


def test_this_test_sees_imports():
    assert {"agent.model", "agent.config"} <= {module for name in sources() for module in imports(name)}
    assert "store" not in {module.split(".")[0] for name in tracked("agent/*.py") for module in imports(name)}


def test_only_two_commands_start_the_store():
    assert {
        name for name in tracked("agent/*.py") if "gpustrobe.store" in (ROOT / name).read_text()
    } <= STARTS_THE_STORE


def test_top_folders_have_no_init():
    """A root folder cupti/ with one would hide NVIDIA's module `cupti`."""
    assert [name for name in tracked("*/__init__.py") if name.count("/") == 1] == []


def test_generated_files_are_up_to_date():
    words = [sys.executable, "tools/generate.py", "--check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_has_a_name_that_says_nothing():
    names = [name for name in tracked() if VAGUE.search(Path(name).name.split(".")[0])]
    assert names == []
    assert VAGUE.search("string_utils") and not VAGUE.search("manageress")


def test_every_source_has_its_licence_line():
    suffixes = ("*.py", "*.c", "*.h", "*.sh", "*.ts", "*.tsx")
    lacking = []
    for name in tracked(*suffixes):
        if "/dist/" not in name and not name.endswith("_pb2.py"):
            head = (ROOT / name).read_text().splitlines()[:3]
            if not any("SPDX-License-Identifier" in line for line in head):
                lacking.append(name)
    assert lacking == []


def test_nothing_names_the_place_it_was_made_at():
    """Paths, hosts and tools of a workshop mean nothing to those who clone. In pieces, so that this file passes."""
    words = ["/wo" + "rk/", "pypi" + "proxy", "clau" + "de", "anthro" + "pic", "art" + "ifactory"]
    pattern = re.compile("|".join(words), re.IGNORECASE)
    found = []
    for name in tracked():
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{name}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_python_3_10_reads_every_source():
    for name in sources():
        ast.parse((ROOT / name).read_text(), name, feature_version=(3, 10))


def test_documented_modules_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    listed = set(re.findall(r"^((?:agent|bpf|symbolizer|store|proto)/[\w/]+\.py)", text, re.MULTILINE))
    assert listed and {name for name in listed if not (ROOT / name).exists()} == set()
