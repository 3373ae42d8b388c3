# SPDX-License-Identifier: Apache-2.0
"""Names of what interpreters run, and where cgroup paths of every runtime lead."""

from __future__ import annotations

import pytest
from gpustrobe.agent.cgroup import Cgroup, parse_cgroup
from gpustrobe.agent.processes import ContainerNames, cmdline_of, labels_of
from gpustrobe.agent.script import script_of
from hypothesis import given
from hypothesis import strategies as st

ID = "3f2a" * 16
POD = "0e8d2b1c-7a5f-4c3e-9b1a-2d4f6a8c0e1f"
UNDERSCORED = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python3 train.py --lr 1e-3", "train.py"),
        ("/usr/bin/python3.12 -u /srv/app/train.py", "train.py"),
        ("python3 -m torch.distributed.run --nproc-per-node 8 train.py", "torch.distributed.run"),
        ("python3 -um x.y", "x.y"),
        ("python3 -mhttp.server", "http.server"),
        ("python -X importtime -W ignore train.py", "train.py"),
        ("python -Xdev -Wignore train.py", "train.py"),
        ("python -OOW error train.py", "train.py"),
        ("python --check-hash-based-pycs always train.py", "train.py"),
        ("python -c print(1)", "-c"),
        ("python3", ""),
        ("python3 -", ""),
        ("python3 -i", ""),
        ("python3 -- -odd.py", "-odd.py"),
        ("python3 /srv/pkg/__main__.py", "pkg"),
        ("/opt/venv/bin/python /opt/venv/bin/torchrun --nproc_per_node=8 train.py", "torchrun"),
        ("pypy3.10 x.py", "x.py"),
        ("node app.js --port 80", "app.js"),
        ("node --max-old-space-size=4096 -r dotenv/config dist/server.js", "server.js"),
        ("/usr/bin/node18 --import ./trace.mjs server.mjs", "server.mjs"),
        ("node -e 1+1", "-e"),
        ("java -Xmx4g -jar /opt/app-1.2.jar serve", "app-1.2.jar"),
        ("java -cp a.jar:b.jar -Dx=y org.acme.Main arg", "org.acme.Main"),
        ("java @opts.txt --class-path=lib/* org.acme.Main", "org.acme.Main"),
        ("java --module-path mods -m acme.core/org.acme.Main", "org.acme.Main"),
        ("java -javaagent:/x/agent.jar=opt org.acme.Main", "org.acme.Main"),
        ("java /tmp/Hello.java", "Hello.java"),
        ("bash /opt/run.sh a b", "run.sh"),
        ("bash -x -o pipefail run.sh", "run.sh"),
        ("-bash", ""),
        ("sh -c make", "-c"),
        ("/bin/sh -euc make", "-c"),
        ("bash -l", ""),
        ("ruby3.1 -I lib -rset bin/rails server", "rails"),
        ("perl -w -I/usr/share /usr/bin/exiftool x", "exiftool"),
        ("perl -e print", "-e"),
        ("php -d memory_limit=1G artisan queue:work", "artisan"),
        ("Rscript --vanilla fit.R", "fit.R"),
        ("/usr/lib/R/bin/exec/R --no-echo --file=fit.R", "fit.R"),
        ("julia -t 8 --project=. sim.jl", "sim.jl"),
        ("deno run --allow-net server.ts", "server.ts"),
        ("bun run index.ts", "index.ts"),
        ("dotnet app.dll", "app.dll"),
        ("nginx -g daemon", ""),
        ("gcc -c x.c", ""),
        ("", ""),
    ],
)
def test_script(command, script):
    assert script_of(tuple(command.split())) == script


def test_multiprocessing_workers_say_so():
    code = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"
    assert script_of(("/usr/bin/python3", "-c", code, "--multiprocessing-fork")) == "multiprocessing.spawn"


def test_titles_and_other_names_of_the_interpreter():
    python = "/usr/bin/python3.11"
    assert script_of(("ray::train_step", "", "", ""), python) == "ray::train_step"
    assert script_of(("gunicorn: worker [shop]",), python) == "gunicorn: worker [shop]"
    assert script_of(("my name", "train.py"), python) == "train.py"
    assert script_of(("npm start",), "/usr/bin/node") == "npm start"
    assert script_of(("postgres: writer",), "/usr/lib/postgresql/15/bin/postgres") == ""
    assert script_of((), python) == ""
    assert len(script_of(("x" * 4096,), python)) == 64


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-m", "-c", "-X", "--", "-", "@x", "+o"]), max_size=6))
def test_any_command_line_has_a_short_answer(arguments):
    for name in ("python3", "java", "node", "bash", "R"):
        assert isinstance(script_of((name, *arguments), "/usr/bin/python3"), str)


def test_cmdline():
    assert cmdline_of(b"") == ()
    assert cmdline_of(b"a\0b c\0\0") == ("a", "b c", "")
    assert cmdline_of(b"nginx: master") == ("nginx: master",)
    assert cmdline_of(b"a\0b") == ("a", "b"), "cut at the limit"
    assert cmdline_of(b"\xff\0") == ("�",)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        (f"/docker/{ID}", Cgroup(ID)),
        (f"/system.slice/docker-{ID}.scope", Cgroup(ID)),
        (f"/system.slice/docker.service/docker/{ID}", Cgroup(ID)),
        (f"/system.slice/nerdctl-{ID}.scope", Cgroup(ID)),
        (f"/machine.slice/libpod-{ID}.scope", Cgroup(ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", Cgroup(ID)),
        (f"/machine.slice/libpod-conmon-{ID}.scope", Cgroup()),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", Cgroup(ID)),
        (f"/kubepods/burstable/pod{POD}/{ID}", Cgroup(ID, POD)),
        (f"/kubepods/pod{POD}/{ID}", Cgroup(ID, POD)),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            Cgroup(ID, POD),
        ),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope", Cgroup(ID, POD)),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope/container", Cgroup(ID, POD)),
        (f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-conmon-{ID}.scope", Cgroup("", POD)),
        (f"/kubepods/besteffort/pod{'ab12' * 8}/{ID}", Cgroup(ID, "ab12" * 8)),
        (
            f"/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
            Cgroup(ID, POD),
        ),
        (f"/../../pod{POD}/{ID}", Cgroup(ID, POD)),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            Cgroup(ID, POD),
        ),
        (f"/docker/{'9' * 64}/kubelet/kubepods/pod{POD}/{ID}", Cgroup(ID, POD)),
        (f"/docker/{ID}/system.slice/sshd.service", Cgroup(ID)),
        (f"/ecs/{'c' * 32}/{ID}", Cgroup(ID)),
        (f"/ecs/{'c' * 32}/{'c' * 32}-1234567890", Cgroup("c" * 32 + "-1234567890")),
        ("/lxc.payload.web/system.slice/nginx.service", Cgroup("web")),
        ("/machine.slice/machine-build.scope", Cgroup("build")),
        ("/system.slice/nginx.service", Cgroup(service="nginx")),
        ("/system.slice/system-getty.slice/getty@tty1.service", Cgroup(service="getty@tty1")),
        ("/system.slice/my\\x2dapp.service", Cgroup(service="my-app")),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/ollama.service", Cgroup(service="ollama")),
        ("/user.slice/user-1000.slice/session-3.scope", Cgroup()),
        ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", Cgroup(slurm_job="4711")),
        ("/slurm/uid_1000/job_4711/step_batch", Cgroup(slurm_job="4711")),
        ("/", Cgroup()),
        (f"/build/{ID[:63]}", Cgroup()),
        (f"/build/x{ID}", Cgroup()),
    ],
)
def test_cgroup_path(path, want):
    assert parse_cgroup(f"0::{path}\n") == want
    assert parse_cgroup(f"12:pids:/\n11:memory:{path}\n1:name=systemd:/init.scope\n0::/\n") == want


def test_hybrid_hierarchy_with_the_container_in_v1_only():
    text = f"11:memory:/docker/{ID}\n1:name=systemd:/system.slice/docker.service\n0::/system.slice/docker.service\n"
    assert parse_cgroup(text) == Cgroup(ID)


def test_cgroup_text_that_is_none():
    for text in ("", "x", "0:", "0::", "a:b:c:d", "\0", "0::relative/" + ID):
        assert parse_cgroup(text) == Cgroup()


@given(st.text(max_size=80))
def test_any_cgroup_text_is_read(text):
    parse_cgroup(text)


def test_labels_with_and_without_names_of_the_container():
    cgroup = f"0::/kubepods/pod{POD}/{ID}\n".encode()
    cmdline = ("python3", "serve.py")
    assert labels_of(cmdline, "/usr/bin/python3", cgroup) == {
        "script": "serve.py",
        "container": ID[:12],
        "pod_uid": POD,
    }
    names = {ID: ContainerNames("server", "llm-0", "prod")}
    assert labels_of(cmdline, "/usr/bin/python3", cgroup, names) == {
        "script": "serve.py",
        "container": "server",
        "pod": "llm-0",
        "namespace": "prod",
    }


def test_an_upgraded_interpreter_is_still_one():
    assert labels_of(("renamed", "x.py"), "/usr/bin/python3.11 (deleted)", b"") == {"script": "x.py"}


def test_kernel_threads_have_no_labels():
    assert labels_of((), "", b"0::/\n") == {}
