"""The compiled attention against PyTorch's in double precision, over trees, caches and batches."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lookahead.lean import rotate
from lookahead.native.attention import Geometry, Heads, attend, causal, is_prompt
from tests.native.kernels import kernels_or_skip


def random_tree(nodes: int) -> Tensor:
    """Mask [nodes, nodes] of a tree whose node i hangs below a random earlier one."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        parent = int(torch.randint(node, ()))
        mask[node] |= mask[parent]
    return mask


def expected(
    qkv: Tensor, angles: Tensor, keys: Tensor, values: Tensor, where: Geometry, heads: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The same by PyTorch; [batch, n, heads, d]."""
    batch, nodes, _, size = qkv.shape
    group = heads // keys.shape[1]
    wide = angles.to(dtype).unsqueeze(2)
    sin = wide.sin()
    factors = (wide.cos(), -sin[..., : size // 2], sin[..., size // 2 :])
    turned = rotate(qkv.to(dtype), factors)
    out = []
    for b in range(batch):
        start, length = int(where.starts[b]), int(where.lengths[b])
        k, v = keys[b].to(dtype).clone(), values[b].to(dtype).clone()
        k[:, length : length + nodes] = turned[b, :, heads : heads + keys.shape[1]].transpose(0, 1)
        v[:, length : length + nodes] = qkv[b, :, heads + keys.shape[1] :].to(dtype).transpose(0, 1)
        k, v = (x[:, start : length + nodes].repeat_interleave(group, 0) for x in (k, v))
        q = turned[b, :, :heads].transpose(0, 1)
        seen = torch.ones(nodes, length - start + nodes, dtype=torch.bool)
        seen[:, length - start :] = torch.from_numpy(where.mask[b % len(where.mask)] > 0)
        scores = (q @ k.transpose(1, 2)) * size**-0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
        out.append((weights @ v).transpose(0, 1))
    return torch.stack(out)


@given(
    batch=st.integers(1, 3),
    nodes=st.integers(1, 33),
    group=st.sampled_from([1, 2, 3, 7]),
    key_heads=st.integers(1, 3),
    size=st.sampled_from([8, 16, 24, 64, 80, 96, 128]),
    prefix=st.sampled_from([0, 1, 5, 63, 127, 128, 129, 300, 700]),
    own_masks=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_attention_is_that_of_pytorch(
    batch: int, nodes: int, group: int, key_heads: int, size: int, prefix: int, own_masks: bool,
    threads: int, seed: int,
) -> None:  # fmt: skip
    kernels = kernels_or_skip()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    heads, slots = group * key_heads, prefix + nodes
    qkv = torch.randn(batch, nodes, heads + 2 * key_heads, size)
    angles = (torch.rand(batch, nodes, size // 2) * 6).repeat(1, 1, 2)
    storage = torch.randn(2, 4, batch, key_heads, slots + 3, size) * 2  # garbage where unseen
    keys, values = storage[0, 1], storage[1, 1]
    lengths = np.array([prefix - prefix * b // 4 for b in range(batch)], dtype=np.int64)
    starts = lengths * np.arange(batch) // 3
    masks = torch.stack([random_tree(nodes) for _ in range(batch if own_masks else 1)])
    where = Geometry(starts, lengths, masks.numpy().view(np.uint8))

    arguments = (qkv.clone(), angles, keys.clone(), values.clone(), where, heads)
    exact = expected(*arguments, torch.float64)
    usual = expected(*arguments, torch.float32)
    before = storage.clone()
    turns, kind = (angles.cos(), angles.sin()), Heads(heads, key_heads, size, size**-0.5)
    found = attend(kernels, qkv, turns, keys, values, where, kind)

    error, allowed = (float((x.double() - exact).abs().max()) for x in (found, usual))
    assert error <= 2 * allowed + 2e-6
    written = torch.zeros_like(storage, dtype=torch.bool)
    for b in range(batch):
        written[:, 1, b, :, lengths[b] : lengths[b] + nodes] = True
    assert torch.equal(storage[~written], before[~written])


@given(
    batch=st.integers(1, 2),
    nodes=st.sampled_from([2, 3, 63, 64, 65, 200]),
    group=st.sampled_from([1, 3]),
    key_heads=st.integers(1, 2),
    size=st.sampled_from([8, 24, 64]),
    seed=st.integers(0, 99),
)
def test_a_prompts_attention_is_causal(
    batch: int, nodes: int, group: int, key_heads: int, size: int, seed: int
) -> None:
    kernels = kernels_or_skip()
    torch.manual_seed(seed)
    heads = group * key_heads
    qkv = torch.randn(batch, nodes, heads + 2 * key_heads, size).transpose(1, 2)
    q, k, v = qkv.split([heads, key_heads, key_heads], 1)
    assert is_prompt(q, k, v, None, None) and not is_prompt(q, k, v, None, nodes - 1)

    def expected(dtype: torch.dtype) -> Tensor:
        wide_q, wide_k, wide_v = (x.to(dtype) for x in (q, k, v))
        made = F.scaled_dot_product_attention(
            wide_q, wide_k, wide_v, is_causal=True, enable_gqa=True
        )
        return made.transpose(1, 2)

    exact = expected(torch.float64)
    found, usual = causal(kernels, q, k, v, size**-0.5), expected(torch.float32)
    error, allowed = (float((x.double() - exact).abs().max()) for x in (found, usual))
    assert error <= 2 * allowed + 2e-6


def test_a_node_that_sees_nothing_gets_zeros() -> None:
    qkv = torch.randn(1, 2, 3, 8)
    where = Geometry(
        np.zeros(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.array([[[1, 0], [0, 0]]], dtype=np.uint8),
    )
    cache = torch.randn(2, 1, 1, 4, 8)
    turn = torch.ones(1, 2, 8), torch.zeros(1, 2, 8)
    value = qkv[0, 0, 2].clone()
    found = attend(kernels_or_skip(), qkv, turn, cache[0], cache[1], where, Heads(1, 1, 8, 1.0))
    torch.testing.assert_close(found[0, 0, 0], value)
    assert not found[0, 1].any()


def test_a_broken_key_shows_in_the_result() -> None:
    qkv = torch.randn(1, 1, 3, 8)
    cache = torch.randn(2, 1, 1, 4, 8)
    cache[0, 0, 0, 1] = float("nan")
    where = Geometry(
        np.zeros(1, dtype=np.int64), np.full(1, 2, dtype=np.int64), np.ones((1, 1, 1), np.uint8)
    )
    turn = torch.ones(1, 1, 8), torch.zeros(1, 1, 8)
    found = attend(kernels_or_skip(), qkv, turn, cache[0], cache[1], where, Heads(1, 1, 8, 1.0))
    assert found.isnan().any()
