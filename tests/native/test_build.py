"""The kernels are compiled once, whole or not at all, and their absence is no error."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lookahead.native import build as building
from lookahead.native.build import Kernels, NoKernels, build, load_kernels


def needs_compiler() -> None:
    reason = load_kernels()
    if isinstance(reason, str):
        pytest.skip(reason)


def test_a_second_build_loads_what_the_first_compiled(tmp_path: Path) -> None:
    needs_compiler()
    first = build(tmp_path)
    (library,) = tmp_path.iterdir()
    written = library.stat().st_mtime_ns
    second = build(tmp_path)
    assert isinstance(first, Kernels) and second.panel == first.panel
    assert [*tmp_path.iterdir()] == [library] and library.stat().st_mtime_ns == written


def test_a_damaged_library_is_made_anew(tmp_path: Path) -> None:
    needs_compiler()
    build(tmp_path)
    (library,) = tmp_path.iterdir()
    whole = library.stat().st_size
    copy = tmp_path / "other" / library.name  # not the file that this process has mapped
    copy.parent.mkdir()
    copy.write_bytes(library.read_bytes()[:100])
    assert build(copy.parent).panel in (8, 16, 32)
    assert copy.stat().st_size == whole


def test_without_a_compiler_the_reason_is_given(tmp_path: Path) -> None:
    with pytest.raises(NoKernels, match="no C\\+\\+ compiler was found"):
        build(tmp_path / "kernels", ("no-such-compiler",))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("script", ["echo 'kernels.cpp:1: broken' >&2; exit 1", "exit 0"])
def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, script: str) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "kernels"
    with pytest.raises(NoKernels):
        build(folder, (str(compiler),))
    assert not [*folder.iterdir()]


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    needs_compiler()
    (tmp_path / "file").write_text("")
    with pytest.raises(NoKernels, match="cannot be written"):
        build(tmp_path / "file" / "kernels")


def test_another_processor_or_compiler_gets_a_library_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compilers = [tmp_path / "one", tmp_path / "two"]
    for compiler in compilers:
        compiler.write_text("")
    first, second = (building._key(str(compiler)) for compiler in compilers)
    monkeypatch.setattr(building, "_features", lambda: "another processor")
    assert len({first, second, building._key(str(compilers[0]))}) == 3
