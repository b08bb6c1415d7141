"""The one error of the model store, and how a full disk is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ModelStoreError(ValueError):
    """A model cannot be had as asked. The message is one sentence that says what to do."""


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error`` says that no space is left; safetensors tells it only in its text."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "os error 28" in str(error) or "No space left on device" in str(error)


@contextmanager
def clear_disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk, an unwritable ``folder`` or an unreadable file into a `ModelStoreError`."""
    try:
        yield
    except ModelStoreError:
        raise
    except Exception as error:
        if is_disk_full(error):
            message = (
                f"The disk is full at {folder}: free some space or choose another --cache-dir."
            )
            raise ModelStoreError(message) from error
        if isinstance(error, OSError):
            raise ModelStoreError(
                f"{error.filename or folder} cannot be used ({error.strerror or error}): "
                "check the path of --model or choose another --cache-dir."
            ) from error
        raise
