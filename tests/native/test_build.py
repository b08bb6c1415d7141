"""The kernels are compiled once, whole or not at all, and their absence is no error."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lookahead.native import build as building
from lookahead.native.build import FLAGS, Kernels, NoKernels, build
from lookahead.native.load import wrong
from tests.native.kernels import kernels_or_skip


def test_a_second_build_loads_what_the_first_compiled(tmp_path: Path) -> None:
    kernels_or_skip()
    first = build(tmp_path)
    (library,) = tmp_path.iterdir()
    written = library.stat().st_mtime_ns
    second = build(tmp_path)
    assert isinstance(first, Kernels) and second.panel == first.panel
    assert [*tmp_path.iterdir()] == [library] and library.stat().st_mtime_ns == written


def test_a_damaged_library_is_made_anew(tmp_path: Path) -> None:
    kernels_or_skip()
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


@pytest.mark.parametrize(
    "script", ["echo 'In file included from'; echo 'k.cpp:1: error: broken' >&2; exit 1", "exit 0"]
)
def test_a_compiler_that_fails_is_asked_once_and_leaves_no_library(
    tmp_path: Path, script: str
) -> None:
    compiler, asked = tmp_path / "c++", tmp_path / "asked"
    compiler.write_text(f"#!/bin/sh\necho x >> {asked}\n{script}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "a folder"
    reasons = []
    for _ in range(2):
        with pytest.raises(NoKernels) as caught:
            build(folder, (str(compiler),))
        reasons.append(str(caught.value))
    calls = len(asked.read_text().split())
    assert calls == (1 if "exit 1" in script else 2)  # compiling and linking
    assert [path.suffix for path in folder.iterdir()] == [".failed"]
    assert reasons[1].startswith(reasons[0]) and "delete" in reasons[1]
    assert "broken" in reasons[0] or "exit 1" not in script


def test_a_compiler_that_was_stopped_is_asked_again(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nkill -9 $$\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(NoKernels, match="stopped by signal 9"):
        build(tmp_path / "kernels", (str(compiler),))
    assert not [*(tmp_path / "kernels").iterdir()]


def test_a_failure_is_not_believed_for_ever(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    for _ in range(2):
        with pytest.raises(NoKernels) as caught:
            build(tmp_path / "kernels", (str(compiler),))
        assert "delete" not in str(caught.value)
        (failure,) = (tmp_path / "kernels").iterdir()
        os.utime(failure, (0, 0))


def test_a_compiler_that_cannot_be_run_is_a_reason(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_bytes(b"\x7fELF nonsense")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(NoKernels, match="cannot be run"):
        build(tmp_path / "kernels", (str(compiler),))


def test_the_next_compiler_is_asked_where_one_fails(tmp_path: Path) -> None:
    kernels_or_skip()
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    assert build(tmp_path / "kernels", (str(compiler), *building.COMPILERS)).panel


def test_a_folder_that_cannot_be_made_is_a_reason_and_not_the_compilers_fault(
    tmp_path: Path,
) -> None:
    kernels_or_skip()
    (tmp_path / "file").write_text("")
    with pytest.raises(NoKernels, match="Not a directory"):
        build(tmp_path / "file" / "kernels")


def test_a_full_disk_is_a_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip()

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building.os, "replace", full)
    with pytest.raises(NoKernels, match="No space left"):
        build(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_another_compiler_or_other_flags_get_a_library_of_their_own(tmp_path: Path) -> None:
    compilers = [tmp_path / "one", tmp_path / "two"]
    for compiler in compilers:
        compiler.write_text("")
    keys = [building._key(str(compiler), FLAGS) for compiler in compilers]
    assert len({*keys, building._key(str(compilers[0]), ("-O0",))}) == 3


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
@pytest.mark.parametrize("level, needs", [("x86-64", "sse2"), ("x86-64-v3", "avx2")])
def test_kernels_for_lesser_processors_compute_rightly(
    level: str, needs: str, tmp_path: Path
) -> None:
    kernels_or_skip()
    if needs not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"no {needs} here")
    flags = [flag if "native" not in flag else f"-march={level}" for flag in FLAGS]
    assert wrong(build(tmp_path, flags=flags)) == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
def test_kernels_for_wide_registers_compile(tmp_path: Path) -> None:
    kernels_or_skip()
    flags = [flag if "native" not in flag else "-march=x86-64-v4" for flag in FLAGS]
    library = tmp_path / "kernels.so"
    building._compile(str(shutil.which("c++")), flags, library)  # may not run here
    assert library.stat().st_size > 10_000


@pytest.mark.parametrize(
    "name, result", [("linear", 7), ("attention", 4), ("stack", 5), ("causal", 6), ("top", 4)]
)
def test_kernels_that_compute_wrongly_are_found_out(name: str, result: int) -> None:
    kernels = kernels_or_skip()

    def spoilt(*args: Any) -> None:
        getattr(kernels, name)(*args)
        ctypes.memset(args[result], 0x7F, 4)  # one number of the result

    assert wrong(kernels) == ""
    changed: dict[str, Any] = {name: spoilt}
    assert "compute wrongly" in wrong(replace(kernels, **changed))
