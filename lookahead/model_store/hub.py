"""Models of the Hugging Face Hub: from its local cache, else downloaded into it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from .errors import ModelStoreError, is_disk_full

# Without a network the answer should come in seconds, not after the Hub client's own patience.
TIMEOUT_SECONDS = 5.0
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def has_model(folder: Path) -> bool:
    """Whether ``folder`` holds a configuration and all the weight files it speaks of."""
    if not (folder / "config.json").is_file():
        return False
    if any((folder / name).is_file() for name in WEIGHTS):
        return True
    for index in (folder / f"{name}.index.json" for name in WEIGHTS):
        if index.is_file():
            try:
                shards = set(json.loads(index.read_text())["weight_map"].values())
            except (ValueError, TypeError, KeyError, AttributeError):
                return False  # damaged
            return bool(shards) and all((folder / str(shard)).is_file() for shard in shards)
    return False


def wanted_files(names: Iterable[str]) -> list[str]:
    """The files at the top of a repository that loading needs; one weight format, the safer one."""
    top = [n for n in names if "/" not in n]
    weights = [n for n in top if n.endswith(".safetensors")] or [
        n for n in top if n.startswith("pytorch_model") and n.endswith(".bin")
    ]
    texts = (".json", ".jinja", ".txt", ".model", ".tiktoken")
    return weights + [n for n in top if n.endswith(texts)]


def find_local(model_id: str, cache_dir: Path | None = None) -> Path | None:
    """The complete snapshot of ``model_id`` in the Hub's local cache, or None. Uses no network."""
    config = try_to_load_from_cache(model_id, "config.json", cache_dir=cache_dir)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    complete = has_model(folder) and any((folder / name).is_file() for name in TOKENIZERS)
    return folder if complete else None


def download(model_id: str, cache_dir: Path | None = None) -> Path:
    """Download ``model_id`` into the Hub's local cache and return its folder.

    Interrupted downloads resume, since the Hub client keeps what has arrived.

    Raises:
        ModelStoreError: there is no such model, it is gated, or the Hub cannot be reached.
    """
    try:
        info = HfApi().model_info(model_id, timeout=TIMEOUT_SECONDS)
        files = wanted_files(s.rfilename for s in info.siblings or [])
        if "config.json" not in files:
            message = f"Hub model {model_id} holds no config.json: choose a transformers model."
            raise ModelStoreError(message)
        folder = snapshot_download(
            model_id, cache_dir=cache_dir, etag_timeout=TIMEOUT_SECONDS, allow_patterns=files
        )
    except ModelStoreError:
        raise
    except GatedRepoError as error:
        message = (
            f"Hub model {model_id} is gated: accept its terms on the Hub, then `hf auth login`."
        )
        raise ModelStoreError(message) from error
    except RepositoryNotFoundError as error:
        message = f"The Hub has no model {model_id} (or it is private): check the name."
        raise ModelStoreError(message) from error
    except Exception as error:  # the HTTP client's errors differ between its versions
        if is_disk_full(error):
            raise
        raise ModelStoreError(
            f"The Hugging Face Hub cannot be reached and {model_id} is not in its local cache: "
            "connect to the network, or give a local folder or a GGUF file as --model."
        ) from error
    return Path(folder)
