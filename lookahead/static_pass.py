"""Passes of fixed shape, so that a GPU can replay them as CUDA graphs.

On a GPU a small pass is limited by the host that launches its kernels. A pass of fixed width and
span (cache slots that attention reads) launches the same kernels on the same memory every time:
recorded once, it is replayed by one call. Widths and spans are rounded up to buckets. Inputs are
copied into buffers; keys and values are written by slot numbers that are data, not shapes; the mask
covers the whole span. Storage of keys and values is kept between calls, since graphs remember
addresses.

Off CUDA nothing is recorded and the same code runs eagerly: that is how it is tested. It has not
yet run on a GPU.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
_SPAN_STEP = 256
_WARM_UPS = 2


def bucket(n: int, sizes: tuple[int, ...]) -> int | None:
    """The smallest of ``sizes`` that holds n, or None."""
    return next((size for size in sizes if size >= n), None)


@dataclass
class StaticWindow:
    """Where a pass of fixed shape writes (``slots`` int64 [width]) and how far it reads."""

    slots: Tensor
    span: int


class Arena:
    """Storage of keys and values that outlives a call. One call at a time may use it.

    Ordinary tensors, also inside ``torch.inference_mode``: the next call may be outside of it.
    """

    def __init__(self) -> None:
        self._tensors: dict[Any, Tensor] = {}

    @torch.inference_mode(False)
    def take(self, key: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of at least this shape; dimension 3 (slots) may be larger. Values are finite."""
        known = self._tensors.get(key)
        if known is None or known.shape[3] < shape[3]:
            slots = -(-shape[3] // _SPAN_STEP) * _SPAN_STEP
            known = like.new_zeros((*shape[:3], slots, *shape[4:]))
            self._tensors[key] = known
        return known


class _Recorded:
    """One shape: input buffers, the graph and its output."""

    @torch.inference_mode(False)
    def __init__(
        self, width: int, span: int, device: torch.device, masks: dict[str, Tensor]
    ) -> None:
        self.tokens = torch.zeros((1, width), dtype=torch.int64, device=device)
        self.positions: Tensor | None = None
        self.window = StaticWindow(torch.zeros(width, dtype=torch.int64, device=device), span)
        self.masks = {
            kind: torch.zeros((1, 1, width, span), dtype=mask.dtype, device=device)
            for kind, mask in masks.items()
        }
        self.graph: Any = None
        self.logits: Tensor | None = None

    def fill(
        self, tokens: Tensor, positions: Tensor | None, start: int, masks: dict[str, Tensor]
    ) -> None:
        """Copy one pass in; what is left of the width repeats its first node."""
        width, n = self.tokens.shape[1], tokens.shape[1]
        self.tokens[:, :n] = tokens
        self.window.slots.copy_(torch.arange(start, start + width))
        if positions is not None:
            if self.positions is None:
                with torch.inference_mode(False):
                    shape = (*positions.shape[:-1], width)
                    self.positions = positions.new_zeros(shape)
            self.positions[..., n:] = positions[..., :1]
            self.positions[..., :n] = positions
        for kind, mask in masks.items():
            buffer = self.masks[kind]
            buffer.fill_(torch.finfo(buffer.dtype).min)
            buffer[..., :n, : mask.shape[-1]] = mask
            buffer[..., n:, : mask.shape[-1]] = mask[..., :1, :]


class StaticPasses:
    """Runs passes of one row through fixed shapes; on CUDA as graphs.

    ``module`` must run with a mask over all slots (eager or SDPA attention). Where recording fails
    (some models wait for the device in mid-pass) ``broken`` says why, and ordinary passes go on.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._shapes: dict[tuple[int, int, int], _Recorded] = {}
        self.arena = Arena()
        self.broken = ""
        self.user: weakref.ref[Any] | None = None

    @property
    def free(self) -> bool:
        """Whether no unfinished call uses the storage; ``user`` refers to the last call."""
        return self.user is None or self.user() is None

    def __call__(
        self, cache: Any, tokens: Tensor, positions: Tensor | None, masks: dict[str, Tensor]
    ) -> Tensor | None:
        """Logits [1, n, vocabulary], or None where the pass does not fit a bucket.

        ``tokens`` [1, n]; ``positions`` [..., 1, n]; ``masks`` additive [1, 1, n, slots] by kind of
        layer.
        """
        n = tokens.shape[1]
        width = bucket(n, WIDTHS)
        start = cache.starts[0]
        if self.broken or width is None:
            return None
        span = -(-(start + width) // _SPAN_STEP) * _SPAN_STEP
        cache.reserve(cache.starts, span - start)  # grows the storage if need be
        key = (width, span, cache.address)
        shape = self._shapes.get(key)
        if shape is None:
            self._shapes = {k: v for k, v in self._shapes.items() if k[2] == cache.address}
            shape = self._shapes[key] = _Recorded(width, span, tokens.device, masks)
        shape.fill(tokens, positions, start, masks)
        cache.static = shape.window
        try:
            self._run(shape, cache)
        finally:
            cache.static = None
        return None if shape.logits is None else shape.logits[:, :n]

    def _run(self, shape: _Recorded, cache: Any) -> None:
        if shape.tokens.device.type != "cuda":
            shape.logits = self._forward(shape, cache)
            return
        if shape.graph is None:
            try:
                self._record(shape, cache)
            except RuntimeError as error:
                self.broken = f"recording failed: {str(error).splitlines()[0]}"
                shape.logits = None
                return
        shape.graph.replay()

    def _record(self, shape: _Recorded, cache: Any) -> None:
        """Record as the documentation of torch.cuda.CUDAGraph has it: warm up on a side stream."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._forward(shape, cache)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            shape.logits = self._forward(shape, cache)
        shape.graph = graph

    def _forward(self, shape: _Recorded, cache: Any) -> Tensor:
        masks = shape.masks
        inputs: dict[str, Any] = {
            "input_ids": shape.tokens,
            "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
            cache.argument: cache,
            "use_cache": True,
            "return_dict": True,
        }
        if shape.positions is not None:
            inputs["position_ids"] = shape.positions
        logits: Tensor = self._module(**inputs).logits
        return logits
