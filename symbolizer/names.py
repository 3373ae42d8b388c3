# SPDX-License-Identifier: Apache-2.0
"""Names as people read them: bytes of foreign files made printable, mangled names made short. Pure functions."""

from __future__ import annotations

import re

# Longest name shown. libjax has demangled names of 60 KB; nobody reads past this, and each name is paid on the wire.
NAME_LIMIT = 512

# Mangled C++ has no dots of its own, what follows is the compiler's: .isra.0, .cold, .llvm.1234 (a hash, dropped).
_CXX = re.compile(r"(_Z[^.]+)((?:\.[\w]+)*)$")
_RUST_LEGACY = re.compile(r"(_ZN.*17h[0-9a-f]{16}E)((?:\.[\w]+)*)$")
_RUST_V0 = re.compile(r"(_R[A-Za-z0-9][^.]+)((?:\.[\w]+)*)$")
_NOISE = re.compile(r"\.llvm\.\d+")
_QUALIFIERS = re.compile(r"(?:\s*(?:const|volatile|noexcept|&&?))+$")
_THUNK = re.compile(r"(?:(?:non-)?virtual thunk to|covariant return thunk to) ")
_OPERATOR = re.compile(r"\boperator(?:\(\)|\[\]|->\*?|<=>|<<=|>>=|<<(?=[<(]|$)|>>|<=|>=|[<>]|[-+*/%^&|!=,~]+)")


def printable(text: str | bytes, limit: int = NAME_LIMIT) -> str:
    """Text of a foreign file without control characters, at most `limit` characters, "…" last if cut."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def mangled(name: str) -> tuple[str, str] | None:
    """(what a demangler takes, compiler's suffix) of a C++ or Rust name; None if it is neither."""
    if not name.startswith(("_Z", "_R")):
        return None
    match = _RUST_LEGACY.match(name) or _CXX.match(name) or _RUST_V0.match(name)
    return (match[1], _NOISE.sub("", match[2])) if match else None


def is_rust(name: str) -> bool:
    return name.startswith("_R") or _RUST_LEGACY.match(name) is not None


def function_name(demangled: str) -> str:
    """A C++ function without parameters, return type and qualifiers, template arguments kept: `ns::A<int>::run`.

    Overloads share a name then; file and line tell them apart where known. What cannot be taken apart stays whole.
    """
    thunk = _THUNK.match(demangled)
    if thunk:
        return thunk[0] + function_name(demangled[thunk.end() :])
    head = _without_parameters(_QUALIFIERS.sub("", demangled))
    return head[_name_start(head) :] if head else demangled


def _without_parameters(text: str) -> str:
    """`text` up to its last parameter list; itself if it has none; "" if its brackets do not match."""
    if not text.endswith(")") or text.endswith(("operator()", "(anonymous namespace)")):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            head = text[:at]
            # a function that returns a function pointer: `void (*f(int))(char)`
            return "" if head.endswith((")", " ")) and "operator" not in head else head
    return ""


def _name_start(text: str) -> int:
    """Where the qualified name begins: after the last space outside all brackets, the return type's end."""
    depth = start = at = 0
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        if operator:
            at = operator.end()
            continue
        if text.startswith("operator ", at) and depth == 0:  # a conversion; its type may contain spaces
            break
        char = text[at]
        if char in "<([{":
            depth += 1
        elif char in ">)]}":
            if char != ">" or text[at - 1] != "-":
                depth -= 1
        elif char == " " and depth == 0:
            start = at + 1
        at += 1
    return start if depth == 0 else 0
