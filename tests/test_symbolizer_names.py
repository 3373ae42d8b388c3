# SPDX-License-Identifier: Apache-2.0
"""Names as shown: C++ against c++filt, Rust against rustc, hostile text, and names that kill their demangler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gpustrobe.symbolizer.child import ChildLimits, Reader
from gpustrobe.symbolizer.demangler import Demangler
from gpustrobe.symbolizer.dwarf import demangle
from gpustrobe.symbolizer.names import NAME_LIMIT, function_name, mangled, printable
from hypothesis import given
from hypothesis import strategies as st

from tests.symbolizer_elf import compile_c, output_of


@pytest.mark.parametrize(
    ("demangled", "shown"),
    [
        ("outer(int)", "outer"),
        ("main", "main"),
        ("ns::A<int>::run(std::vector<int, std::allocator<int>> const&, int) const", "ns::A<int>::run"),
        ("void f<int>(int)", "f<int>"),
        ("unsigned long ns::g<(ns::E)3, &(h(int))>(int (*)(char))", "ns::g<(ns::E)3, &(h(int))>"),
        ("std::function<void ()>::operator()() const", "std::function<void ()>::operator()"),
        ("main::'lambda'()::operator()() const", "main::'lambda'()::operator()"),
        ("foo(int)::bar(char)", "foo(int)::bar"),
        ("(anonymous namespace)::f()", "(anonymous namespace)::f"),
        ("int (anonymous namespace)::f<int>()", "(anonymous namespace)::f<int>"),
        ("A::operator bool() const", "A::operator bool"),
        ("A::operator unsigned long() const", "A::operator unsigned long"),
        ("operator<<(std::ostream&, A const&)", "operator<<"),
        ("std::ostream& operator<<<char>(std::ostream&, char)", "operator<<<char>"),
        ("bool operator<(A const&, A const&)", "operator<"),
        ("A* B<A>::operator->() const", "B<A>::operator->"),
        ("decltype(auto) ns::h<int>(int)", "ns::h<int>"),
        ("A::~A()", "A::~A"),
        ("non-virtual thunk to A::run(int)", "non-virtual thunk to A::run"),
        ("operator new(unsigned long)", "operator new"),
        ("A::f() &&", "A::f"),
        ("void (*f(int))(char)", "void (*f(int))(char)"),  # cannot be taken apart: kept whole
        ("f(int", "f(int"),
    ],
)
def test_a_function_without_parameters_and_return_type(demangled: str, shown: str) -> None:
    assert function_name(demangled) == shown


def comparable(text: str) -> str:
    """Ways in which LLVM and binutils print the same name differently."""
    while "> >" in text:
        text = text.replace("> >", ">>")
    return re.sub(r"operator(<<|<) <", r"operator\1<", text)


def test_cxx_names_of_libstdcxx_equal_cxxfilt() -> None:
    places = [*Path("/usr/lib").glob("*/libstdc++.so.6"), *Path("/usr/lib64").glob("libstdc++.so.6")]
    if not places or not shutil.which("c++filt"):
        pytest.skip("no libstdc++ or no binutils")
    symbols = {
        line.split()[-1].split("@")[0] for line in output_of("nm", "-D", "--defined-only", places[0]).splitlines()
    }
    # Substitutions (Ss: std::string) are printed short by LLVM; thunks and guards are no functions of their own.
    plain = sorted(s for s in symbols if re.match(r"_ZN?K?S?t?\d*\w+$", s) and not re.search(r"S[sioda]|^_Z(G|T)", s))
    wanted = output_of("c++filt", "-p", feed="\n".join(plain)).splitlines()
    pairs = [(comparable(demangle(s)), comparable(w)) for s, w in zip(plain, wanted, strict=True)]
    assert len(pairs) > 1000
    assert [(got, want) for got, want in pairs if got != want] == []


@pytest.mark.parametrize("scheme", ["legacy", "v0"])
def test_rust_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    source = """
mod inner { pub struct Tree<T>(pub T); pub trait Walk { fn walk(&self) -> u64; }
  impl Walk for Tree<u64> { #[inline(never)] fn walk(&self) -> u64 { std::hint::black_box(self.0) } }
  #[inline(never)] pub fn twice<F: Fn(u64) -> u64>(f: F) -> u64 { f(std::hint::black_box(2)) } }
fn main() { use inner::Walk; println!("{}", inner::Tree(3u64).walk() + inner::twice(|x| x * 2)); }
"""
    if not shutil.which("rustc") or subprocess.run(["rustc", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("rustc is not installed")
    monkeypatch.setenv("RUSTC_BOOTSTRAP", "1")  # the old scheme is an unstable option by now
    flags = ["-Z", "unstable-options", "-C", f"symbol-mangling-version={scheme}", "-O"]
    program = compile_c(tmp_path, source, *flags, suffix=".rs", name="walker")
    linkages = [line.split()[-1] for line in output_of("nm", program).splitlines() if "walker" in line]
    shown = {demangle(linkage) for linkage in linkages}
    assert "walker::main" in shown
    assert any("Tree<u64> as walker::inner::Walk>::walk" in name for name in shown), shown
    assert not any(re.search(r"17h[0-9a-f]{16}|^_R|^_ZN", name) for name in shown)


@pytest.mark.parametrize(
    ("linkage", "parts"),
    [
        ("main", None),
        ("_start", None),
        ("_Z3fooi", ("_Z3fooi", "")),
        ("_Z3fooi.isra.0.cold", ("_Z3fooi", ".isra.0.cold")),
        ("_Z3fooi.llvm.123456", ("_Z3fooi", "")),
        ("_ZN1a5b..c17h0123456789abcdefE", ("_ZN1a5b..c17h0123456789abcdefE", "")),
        ("_ZN1a1b17h0123456789abcdefE.llvm.99", ("_ZN1a1b17h0123456789abcdefE", "")),
        ("_RNvCs15kBYyAo9fc_7mycrate7example", ("_RNvCs15kBYyAo9fc_7mycrate7example", "")),
        ("_Z", None),
    ],
)
def test_what_is_mangled(linkage: str, parts: tuple[str, str] | None) -> None:
    assert mangled(linkage) == parts


def test_compilers_suffixes_stay() -> None:
    assert demangle("_Z3fooi.isra.0") == "foo.isra.0"
    assert demangle("_Reader") == "_Reader"
    assert demangle("_ZNotReallyMangled") == "_ZNotReallyMangled"


@given(st.binary(max_size=2000))
def test_shown_text_is_printable_and_short(data: bytes) -> None:
    shown = printable(data)
    assert shown.isprintable() and len(shown) <= NAME_LIMIT


@given(st.text(alphabet="abc<>()[]: *&-'operat,", max_size=60))
def test_no_text_breaks_the_shortening(text: str) -> None:
    assert function_name(text) in text or text in function_name(text)


@pytest.fixture
def reader():
    reader = Reader(ChildLimits(answer_seconds=3))
    yield reader
    reader.close()


# Each argument is A<previous, previous>: 200 bytes unfold to 2^34 characters.
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BOMB = "_Z1f1AIiiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in DIGITS[:34])


def test_a_name_that_kills_the_child_is_refused_and_the_others_are_not(reader: Reader) -> None:
    demangler = Demangler(reader)
    names = ["_Z6beforei", BOMB, "_Z5afterv", "plain"]
    shown = demangler.demangle(names)
    assert shown == {"_Z6beforei": "before", BOMB: BOMB, "_Z5afterv": "after", "plain": "plain"}
    assert (demangler.refused, reader.deaths) == (1, 2)
    starts = reader.starts
    assert demangler.demangle(names) == shown
    assert reader.starts == starts  # neither asked again nor killed again


def test_a_child_that_ends_between_requests_is_started_again(reader: Reader) -> None:
    demangler = Demangler(reader)
    assert demangler.demangle(["_Z3onev"]) == {"_Z3onev": "one"}
    reader._process.kill()
    reader._process.wait()
    assert demangler.demangle(["_Z3twov"]) == {"_Z3twov": "two"}
    assert (reader.starts, reader.deaths) == (2, 0)


def test_an_idle_child_ends_by_itself() -> None:
    reader = Reader(ChildLimits(idle_seconds=1))
    assert list(reader.ask({"op": "demangle", "names": ["_Z3onev"]})) == ["one"]
    assert reader._process.wait(timeout=10) == 0
    assert reader.pid == 0
    reader.close()
