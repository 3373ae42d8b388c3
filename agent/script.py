# SPDX-License-Identifier: Apache-2.0
"""What an interpreter runs, from its command line: `python3 -u -m torch.distributed.run x` -> `torch.distributed.run`,
`java -cp a:b org.acme.Main` -> `org.acme.Main`, `bash /opt/run.sh` -> `run.sh`.

Each interpreter is a row of a table: which options take a value, which give code, a module or the file itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

LONGEST = 64  # characters of a process title


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Options as on the command line. `short`: one-letter options can be joined, also to their value."""

    values: frozenset[str] = frozenset()  # take the next argument
    code: frozenset[str] = frozenset()  # the program itself is the next argument
    module: frozenset[str] = frozenset()  # the next argument is the name of a module or class
    file: frozenset[str] = frozenset()  # the next argument is the file
    commands: frozenset[str] = frozenset()  # words before the file: `deno run x.ts`
    short: bool = True
    whole: bool = False  # what follows the options is a class, not a path


def _row(
    values: str = "", code: str = "", module: str = "", file: str = "", commands: str = "", **flags: bool
) -> Interpreter:
    return Interpreter(*(frozenset(words.split()) for words in (values, code, module, file, commands)), **flags)


PYTHON = _row("-X -W --check-hash-based-pycs", "-c", "-m")
SHELL = _row("-o +o -O +O --rcfile --init-file", "-c")
NODE = _row(
    "-r --require --import --loader --experimental-loader -C --conditions --env-file --title --input-type",
    "-e --eval -p --print -pe",
    short=False,
)
JAVA = _row(
    "-cp -classpath --class-path -p --module-path --upgrade-module-path --add-modules --add-opens --add-exports "
    "--add-reads --patch-module --limit-modules --enable-native-access --source",
    module="-m --module",
    file="-jar",
    short=False,
    whole=True,
)

# Base names of executables; versions are cut off before (python3.12, ruby3.1, node18).
INTERPRETERS = {
    **dict.fromkeys(("python", "pypy", "ipython"), PYTHON),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "ash", "busybox"), SHELL),
    **dict.fromkeys(("node", "nodejs"), NODE),
    "java": JAVA,
    "deno": _row("-c --config --import-map --lock", "eval", commands="run", short=False),
    "bun": _row("-r --preload -c --config --cwd", "-e --eval", commands="run", short=False),
    "ruby": _row("-I -r -C -E", "-e"),
    "perl": _row("-I -M -m", "-e -E"),
    "php": _row("-c -d -z", "-r", file="-f"),
    "Rscript": _row(code="-e", short=False),
    "R": _row("--args", "-e", file="-f --file", short=False),
    "julia": _row("-t -p -J -L -C --threads --procs --sysimage --load --project", "-e -E --eval --print", short=False),
    "lua": _row("-l", "-e"),
    "luajit": _row("-l -j -O", "-e"),
    "dotnet": _row("--additionalprobingpath --fx-version --depsfile --runtimeconfig", commands="exec", short=False),
    "mono": _row("--config", short=False),
}

MULTIPROCESSING = re.compile(r"from (multiprocessing\.\w+) import ")


def script_of(cmdline: tuple[str, ...], exe: str = "") -> str:
    """Base name of the script, or the module's or class's name; `-c`, `-e` for code given as text; "" if this is no
    interpreter or it runs nothing by name. A title that a program gave itself (setproctitle) is returned as it is.
    """
    arguments = list(cmdline)
    while arguments and not arguments[-1]:
        arguments.pop()  # setproctitle leaves NULs
    by_name, by_exe = (_interpreter(name) for name in (arguments[0] if arguments else "", exe))
    if by_name is None and by_exe is None:
        return ""
    if by_name is None and len(arguments) == 1:
        title = arguments[0]
        return title[:LONGEST] if not title.startswith("/") else _base(title)
    return _run_by(by_name or by_exe, arguments[1:])


def _interpreter(name: str) -> Interpreter | None:
    base = PurePosixPath(name).name.lstrip("-")
    return INTERPRETERS.get(base) or INTERPRETERS.get(re.sub(r"[\d.]+[a-z]?(-\w+)?$", "", base))


def _run_by(interpreter: Interpreter, arguments: list[str]) -> str:
    """Walks the options up to what is run."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return _target(interpreter, next(rest, ""))
        if argument in ("-", ""):
            return ""
        if argument[0] not in "-+" and not (argument[0] == "@" and interpreter.whole):
            if argument in interpreter.code:
                return argument
            if argument not in interpreter.commands:
                return _target(interpreter, argument)
            continue
        option, value = _split(interpreter, argument)
        if option in interpreter.code:
            return _code(option, value or next(rest, ""))
        if option in interpreter.module:
            return (value or next(rest, "")).rpartition("/")[2]
        if option in interpreter.file:
            return _base(value or next(rest, ""))
        if option in interpreter.values and not value:
            next(rest, None)
    return ""


def _split(interpreter: Interpreter, argument: str) -> tuple[str, str]:
    """(option, value joined to it): -Wignore, -um, --file=x. Letters before one that takes something are flags."""
    if argument.startswith("--") or not interpreter.short:
        option, _, value = argument.partition("=")
        return option, value
    sign = argument[0]
    taking = interpreter.values | interpreter.code | interpreter.module | interpreter.file
    for at, letter in enumerate(argument[1:], 2):
        if sign + letter in taking:
            return sign + letter, argument[at:]
    return argument, ""


def _code(option: str, text: str) -> str:
    worker = MULTIPROCESSING.match(text)
    return worker[1] if worker else option


def _target(interpreter: Interpreter, argument: str) -> str:
    if interpreter.whole and not argument.endswith(".java"):
        return argument
    return _base(argument)


def _base(path: str) -> str:
    """A package run by its folder or __main__.py goes by the folder's name."""
    pure = PurePosixPath(path)
    return pure.parent.name if pure.name == "__main__.py" and pure.parent.name else pure.name
