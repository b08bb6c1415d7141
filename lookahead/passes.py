"""The module that runs the engine's passes: the model, or a copy with cheaper passes.

What can be gained is tried in order: a copy whose linear layers are prepacked and whose attention
is ``lookahead.attention``; the same with the attention that the model has; the model as it is.
Where there are compiled kernels, copies over them come first.
"""

from __future__ import annotations

from typing import Any

from lookahead.attention import hf
from lookahead.lean import LeanLayer, make_lean
from lookahead.native.build import Kernels
from lookahead.native.layer import layer_maker
from lookahead.native.load import load_kernels
from lookahead.native.matrix import NativeMatrix
from lookahead.native.stack import fuse_layers
from lookahead.packed import PackedMatrix, can_compile, can_pack, pack_linears
from lookahead.shared_copy import cannot_copy, shared_copy, weights_version

COPY_WITH_TREE_ATTENTION, COPY, MODEL = "copy with tree attention", "copy", "model"
COMPILED_WITH_TREE_ATTENTION, COMPILED = f"compiled {COPY_WITH_TREE_ATTENTION}", f"compiled {COPY}"


class Passes:
    """Makes the module for a model and keeps it up to date.

    ``kind`` is one of the kinds above; ``reason`` says why no copy is made, empty where one is;
    ``packed`` counts prepacked linear layers, ``packed_bytes`` the bytes that a pass reads of them,
    ``lean`` replaced decoder layers; ``kernels`` are the compiled kernels, or why there are none.
    """

    def __init__(self, model: Any, *, copied: bool = True, compiled: bool = True) -> None:
        self._model = model
        self._version: Any = None
        self._module: Any = None
        self.packed = self.packed_bytes = self.lean = 0
        self.reason = cannot_copy(model) if copied else "prepacking is switched off"
        self.kernels: Kernels | str = "compiled kernels are switched off"
        if self.reason:
            self.kernels = self.reason
        elif compiled and not any(can_compile(module) for module in model.modules()):
            self.kernels = "no linear layer is fp32 on a CPU"
        elif compiled:
            self.kernels = load_kernels()
        self.kinds = [MODEL] if self.reason else self._possible()
        self.kind = self.kinds[0]

    def _possible(self) -> list[str]:
        kinds = [MODEL]
        if any(can_pack(module) for module in self._model.modules()):
            kinds.insert(0, COPY)
        plain_attention = self._model.config._attn_implementation in ("sdpa", None)
        if plain_attention and hf.why_unsupported(self._model) is None:
            kinds.insert(0, COPY_WITH_TREE_ATTENTION)
        if not isinstance(self.kernels, str):
            kinds.insert(0, COMPILED)
            if COPY_WITH_TREE_ATTENTION in kinds:
                kinds.insert(0, COMPILED_WITH_TREE_ATTENTION)
        return kinds

    @property
    def used_kernels(self) -> Kernels | None:
        """The compiled kernels, where passes of this kind run on them."""
        compiled = self.kind in (COMPILED, COMPILED_WITH_TREE_ATTENTION)
        return self.kernels if compiled and not isinstance(self.kernels, str) else None

    def use(self, kind: str) -> None:
        """Run passes on this kind of module from now on."""
        self.kind = kind
        self._version = None
        self.packed = self.packed_bytes = self.lean = 0

    def module(self) -> Any:
        """The module, made anew where weights of the model have changed since."""
        if self.kind == MODEL:
            return self._model
        version = weights_version(self._model)
        if version != self._version:
            self._module = self._make()
            self._version = version
        return self._module

    def _make(self) -> Any:
        made: Any = shared_copy(self._model)
        kernels = self.used_kernels
        self.packed = pack_linears(made, kernels)
        if self.kind in (COPY_WITH_TREE_ATTENTION, COMPILED_WITH_TREE_ATTENTION):
            made.set_attn_implementation(hf.register())
        self.lean = make_lean(made, layer_maker(kernels) if kernels is not None else LeanLayer)
        if kernels is not None:
            count = getattr(made.config.get_text_config(), "num_hidden_layers", None)
            fuse_layers(made, kernels, count)
        packed = [m for m in made.modules() if isinstance(m, (NativeMatrix, PackedMatrix))]
        self.packed_bytes = sum(matrix.bytes for matrix in packed)
        return made.eval()
