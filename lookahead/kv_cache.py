"""The key-value cache of the engine: preallocated, written in place, rolled back by a number.

This is the only file that knows the cache of transformers. Row ``b`` of the batch has
``lengths[b]`` committed slots; a pass over n tokens writes slots ``starts[b] .. starts[b] + n -
1``. Rolling back is not committing: rows past ``lengths`` are garbage that the next pass overwrites
and no mask shows. Keeping a path that is not contiguous gathers its rows to the front, for all
layers of one shape at once, because those layers are slices of one storage tensor.

The prompt is read by the model's ordinary code into an ordinary cache; ``adopt`` takes it over. All
layers share one numbering of slots, sliding layers too: what those have forgotten is zeros that no
mask shows, because windows are masked by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast as ModelOutput

from lookahead.static_pass import Arena, StaticWindow

# transformers renamed the argument and the output field after 5.20.
CACHE_NAME = "cache" if "cache" in ModelOutput.__dataclass_fields__ else "past_key_values"

_KNOWN_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "StaticLayer",
    "StaticSlidingWindowLayer",
    "DummyLayer",
}


def cache_reason(cache: Any) -> str:
    """Why a cache cannot be taken over, or an empty string."""
    unknown = sorted({type(layer).__name__ for layer in cache.layers} - _KNOWN_LAYERS)
    if unknown or getattr(cache, "offloading", False):
        kind = ", ".join(unknown) or "offloaded layers"
        return f"its cache ({kind}) cannot be rolled back by a number of positions"
    return ""


class TreeLayer(CacheLayerMixin):
    """One layer's view of the shared storage."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: TreeCache, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self._cache = cache
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: storage comes from the cache."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of this pass; return every slot up to the last one written."""
        static = self._cache.static
        if static is not None:
            self.keys.index_copy_(2, static.slots, key_states)
            self.values.index_copy_(2, static.slots, value_states)
            return self.keys[:, :, : static.span], self.values[:, :, : static.span]
        n = key_states.shape[-2]
        start, stop, slots = self._cache.window(n)
        if slots is None:
            self.keys[:, :, start:stop] = key_states
            self.values[:, :, start:stop] = value_states
        else:
            rows, slots = (t.to(self.keys.device) for t in (self._cache.row_index, slots))
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def get_seq_length(self) -> int:
        return max(self._cache.starts)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self._cache.starts) + query_length, 0

    def get_max_length(self) -> int:
        return -1


class TreeCache(Cache):
    """Preallocated cache of a batch, made from the cache that holds the prompt.

    Raises ValueError if that cache has layers that keep anything but keys and values by position
    (recurrent or convolution state, indexers): those cannot be rolled back by a number.
    """

    argument = CACHE_NAME  # under which a model is given its cache

    def __init__(
        self, prompt: Cache, length: int, capacity: int, arena: Arena | None = None
    ) -> None:
        if reason := cache_reason(prompt):
            raise ValueError(reason)
        kept = [layer for layer in prompt.layers if getattr(layer, "keys", None) is not None]
        if not kept:
            raise ValueError("its cache holds no keys and values")
        batch = kept[0].keys.shape[0]
        self.lengths = [length] * batch
        self.starts = [length] * batch
        self.capacity = max(capacity, length + 1)
        self.row_index = torch.arange(batch, device=kept[0].keys.device)[:, None]
        self.static: StaticWindow | None = None
        self._arena = arena
        self._storages: list[tuple[Tensor, Tensor]] = []
        self._members: list[list[int]] = []
        self._slots: dict[int, Tensor] = {}
        super().__init__(layers=self._adopt(prompt, length))

    def _adopt(self, prompt: Cache, length: int) -> list[Any]:
        groups: dict[Any, list[int]] = {}
        for index, layer in enumerate(prompt.layers):
            if getattr(layer, "keys", None) is not None:
                k, v = layer.keys, layer.values
                shape = (k.shape[:2], k.shape[3:], v.shape[3:], k.dtype, k.device)
                groups.setdefault(shape, []).append(index)
        layers: list[Any] = list(prompt.layers)  # those without keys (shared ones) stay
        for members in groups.values():
            first_layer = prompt.layers[members[0]]
            keys = self._allocate(members, "keys", first_layer.keys, self.capacity)
            values = self._allocate(members, "values", first_layer.values, self.capacity)
            for at, index in enumerate(members):
                layer = prompt.layers[index]
                held = min(layer.keys.shape[2], length)  # static layers are longer than they hold
                first = 0 if layer.get_seq_length() == held else layer.keys.shape[2] - held
                source = slice(first, first + held)
                keys[at, :, :, length - held : length] = layer.keys[:, :, source]
                values[at, :, :, length - held : length] = layer.values[:, :, source]
                layers[index] = TreeLayer(self, keys[at], values[at])
            self._storages.append((keys, values))
            self._members.append(members)
        self.capacity = min(keys.shape[3] for keys, _ in self._storages)
        return layers

    def _allocate(self, layers: Sequence[int], name: str, like: Tensor, capacity: int) -> Tensor:
        """Storage [layers, batch, heads, at least ``capacity`` slots, head size]."""
        batch, heads, _, size = like.shape
        shape = (len(layers), batch, heads, capacity, size)
        if self._arena is None:
            return like.new_zeros(shape)
        return self._arena.take((tuple(layers), name, like.dtype, batch), shape, like)

    @property
    def address(self) -> int:
        """Changes when the storage moves."""
        return self._storages[0][0].data_ptr()

    def all_layers(self, count: int) -> tuple[Tensor | None, Tensor | None]:
        """Keys and values [layers, batch, heads, slots, size] of layers 0 to ``count`` - 1, or None
        where these are not all there is or differ in shape."""
        if self._members != [list(range(count))]:
            return None, None
        return self._storages[0]

    # -- a pass -----------------------------------------------------------------------------

    def reserve(self, starts: Sequence[int], n: int) -> None:
        """Make room for a pass over ``n`` tokens at slots ``starts[b]`` of each row."""
        self.starts = list(starts)
        self._slots.clear()
        needed = max(starts) + n
        if needed > self.capacity:
            self._grow(max(needed, 2 * self.capacity))

    def window(self, n: int) -> tuple[int, int, Tensor | None]:
        """(first slot, one past the last slot, slots [batch, n] or None where rows agree)."""
        first, last = min(self.starts), max(self.starts)
        if first == last:
            return first, first + n, None
        slots = self._slots.get(n)
        if slots is None:
            device = self.row_index.device
            begin = torch.tensor(self.starts, device=device)[:, None]
            slots = self._slots[n] = begin + torch.arange(n, device=device)
        return first, last + n, slots

    def _grow(self, capacity: int) -> None:
        grown = []
        for pair, members in zip(self._storages, self._members, strict=True):
            wider = []
            for name, tensor in zip(("keys", "values"), pair, strict=True):
                new = self._allocate(members, name, tensor[0], capacity)
                new[:, :, :, : self.capacity] = tensor[:, :, :, : self.capacity]
                wider.append(new)
            for at, index in enumerate(members):
                self.layers[index].keys, self.layers[index].values = wider[0][at], wider[1][at]
            grown.append((wider[0], wider[1]))
        self._storages = grown
        self.capacity = min(keys.shape[3] for keys, _ in grown)

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Keep the rows of a walked path (tree nodes of the last pass) and drop the rest.

        Nothing is copied when the path is the first rows of the tree.
        """
        start, count = self.lengths[row], len(path)
        moved = [i for i, node in enumerate(path) if node != i]
        if moved:
            first = moved[0]
            for keys, values in self._storages:
                index = torch.tensor(path[first:], device=keys.device) + start
                for tensor in (keys, values):
                    kept = tensor[:, row].index_select(2, index)
                    tensor[:, row, :, start + first : start + count] = kept
        self.lengths[row] = start + count

    # -- the end ----------------------------------------------------------------------------

    def export(self, target: Cache, length: int) -> None:
        """Append the slots from ``length`` on to ``target``, which holds the first ``length``."""
        end = max(self.lengths)
        if end > length:
            for index, layer in enumerate(self.layers):
                if isinstance(layer, TreeLayer):
                    target.update(
                        layer.keys[:, :, length:end].clone(),
                        layer.values[:, :, length:end].clone(),
                        index,
                    )
        if target.get_seq_length() != end:
            raise RuntimeError(
                f"the returned cache holds {target.get_seq_length()} positions instead of {end}"
            )
