"""Every backend equals attention over the joined keys, computed slowly in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead.attention import TreeContext, attend, reference_attention, tree_attention
from lookahead.attention.reference import visible_slots

from .trees import SHAPES, Case, joined_attention, make_case

FAST = ("flash", "sdpa")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def joined_mask(context: TreeContext, batch: int, window: int | None) -> torch.Tensor:
    """bool [batch, n, keys] from the oracle's list of visible slots."""
    end = max(context.lens) + context.width
    mask = torch.zeros(batch, context.width, end, dtype=torch.bool)
    for row in range(batch):
        for node in range(context.width):
            mask[row, node, visible_slots(context, row, node, window)] = True
    return mask


def bound(case: Case, exact: torch.Tensor, exact_lse: torch.Tensor, plain: float) -> float:
    """The largest error allowed: twice SDPA's, ``plain``, which may happen to be nil.

    In 16 bits no result can promise less than correct rounding. In fp32 parts are weighed by
    exp(lse), and an fp32 lse is off by up to |lse| * eps / 2 on each side; and the parts are other
    matrix shapes, so that dot products of d terms are summed in another order, which moves scores
    by some sqrt(d) * eps / 2.
    """
    seen = exact_lse.isfinite()
    eps = torch.finfo(case.q.dtype).eps
    if case.q.dtype == torch.float32:
        largest = float(exact_lse[seen].abs().max())
        return 2 * plain + eps * (max(1.0, largest) + case.q.shape[-1] ** 0.5 / 2)
    return max(2 * plain, eps / 2 * float(exact[seen].abs().max()))


def assert_as_exact_as_sdpa(case: Case, backend: str, window: int | None = None) -> None:
    """Error against fp64 at most twice that of plain SDPA on the same inputs in the same dtype."""
    context = TreeContext(case.prefix_lens, case.tree_mask, None, case.prefix_starts)
    exact, exact_lse = reference_attention(case.q, case.k, case.v, context, window=window)
    out, lse = tree_attention(
        case.q, case.k, case.v, window=window, backend=backend, **case.arguments()
    )
    assert out.dtype == case.q.dtype and out.shape == case.q.shape
    assert lse.dtype == torch.float32
    plain = joined_attention(case, joined_mask(context, case.q.shape[0], window))
    seen = exact_lse.isfinite()
    if not seen.any():
        assert (out == 0).all() and (lse == -torch.inf).all()
        return
    error = (out.double() - exact)[seen]
    plain_errors = [(x.double() - exact)[seen] for x in plain]
    largest = max(float(x.abs().max()) for x in plain_errors)
    assert error.abs().max() <= bound(case, exact, exact_lse, largest)
    if error.numel() > 1000:  # a largest error is luck, the root mean square is not
        largest_rms = max(float(x.square().mean().sqrt()) for x in plain_errors)
        assert error.square().mean().sqrt() <= 2 * largest_rms + torch.finfo(torch.float32).eps / 2
    # The 16-bit CPU kernels sum with a faster, coarser exponential: some 6e-5 was seen.
    tolerance = 1e-5 if case.q.dtype == torch.float32 else 2e-4
    torch.testing.assert_close(lse[seen].double(), exact_lse[seen], rtol=tolerance, atol=tolerance)
    assert (out[~seen] == 0).all() and (lse[~seen] == -torch.inf).all()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, int | None]:
    batch = draw(st.integers(1, 3))
    ragged = draw(st.booleans())
    lens = [draw(st.integers(0, 40)) for _ in range(batch)] if ragged else (
        [draw(st.integers(0, 40))] * batch
    )  # fmt: skip
    starts = [draw(st.integers(0, length)) if draw(st.booleans()) else 0 for length in lens]
    nodes = draw(st.integers(1, 12))
    shared = draw(st.booleans())
    case = make_case(
        seed=draw(st.integers(0, 2**31)),
        nodes=nodes,
        shapes=tuple(draw(st.sampled_from(SHAPES)) for _ in range(1 if shared else batch)),
        prefix_lens=tuple(lens),
        prefix_starts=tuple(starts),
        heads=draw(st.sampled_from([(1, 1), (4, 4), (9, 3), (14, 2), (4, 1)])),
        head_dim=draw(st.sampled_from([32, 64, 80, 96, 128, 256])),
        dtype=draw(st.sampled_from(DTYPES)),
        padding=draw(st.integers(0, min(2, nodes - 1))),
    )
    window = draw(st.one_of(st.none(), st.integers(1, 60)))
    return case, window


@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=60, deadline=None, derandomize=True)  # bounds on rounding are statistical
@given(drawn=cases())
def test_random_trees_are_as_exact_as_plain_sdpa(
    backend: str, drawn: tuple[Case, int | None]
) -> None:
    assert_as_exact_as_sdpa(drawn[0], backend, drawn[1])


@pytest.mark.parametrize("backend", [*FAST, "flex"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", [None, 3, 17])
def test_each_tree_shape_in_each_dtype(
    backend: str, dtype: torch.dtype, shape: str, window: int | None
) -> None:
    case = make_case(
        nodes=13, shapes=(shape,), prefix_lens=(23, 31), prefix_starts=(4, 0), dtype=dtype
    )
    assert_as_exact_as_sdpa(case, backend, window)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("heads", [(9, 3), (14, 2)])
def test_long_prefix_of_many_key_blocks(backend: str, heads: tuple[int, int]) -> None:
    case = make_case(nodes=16, prefix_lens=(3001,), heads=heads, head_dim=64)
    assert_as_exact_as_sdpa(case, backend)


@pytest.mark.parametrize("backend", ["auto", "flash", "sdpa", "flex", "reference"])
@pytest.mark.parametrize("lens", [(0,), (0, 7), (5, 5)])
def test_a_row_that_sees_nothing_is_zero_and_finite(backend: str, lens: tuple[int, ...]) -> None:
    case = make_case(nodes=4, prefix_lens=lens, padding=2)
    out, lse = tree_attention(case.q, case.k, case.v, backend=backend, **case.arguments())
    assert out.isfinite().all() and not lse.isnan().any()
    for row, length in enumerate(lens):
        assert (lse[row, :, 2:] == -torch.inf).all() == (length == 0)
        assert (out[row, :, 2:] == 0).all() == (length == 0)


@pytest.mark.parametrize("backend", ["flash", "sdpa", "flex"])
@pytest.mark.parametrize("window", [None, 4])
def test_softcap_and_sinks_scale_equal_the_reference(backend: str, window: int | None) -> None:
    case = make_case(nodes=9, prefix_lens=(25, 12), shapes=("bushy",), seed=3)
    context = TreeContext(case.prefix_lens, case.tree_mask)
    options: dict[str, Any] = {
        "softcap": 1.5,
        "window": window,
        "scale": 0.7,
        "sinks": torch.randn(4, generator=torch.Generator().manual_seed(1)),
    }
    exact, exact_lse = reference_attention(case.q, case.k, case.v, context, **options)
    out, lse = attend(case.q, case.k, case.v, context, backend=backend, **options)
    assert lse is not None
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    for name in ("softcap", "scale", "sinks"):  # each one matters, so none was ignored
        without, _ = attend(
            case.q, case.k, case.v, context, backend=backend, **{**options, name: None}
        )
        assert (without - out).abs().max() > 1e-3, name


def test_explicit_depths_move_the_window() -> None:
    case = make_case(nodes=5, shapes=("star",), prefix_lens=(10,))
    deeper = torch.tensor([[0, 3, 3, 3, 3]])
    context = TreeContext(10, case.tree_mask, deeper)
    for backend in ("flash", "sdpa", "flex"):
        out, _ = attend(case.q, case.k, case.v, context, window=6, backend=backend)
        exact, _ = reference_attention(case.q, case.k, case.v, context, window=6)
        derived, _ = attend(
            case.q, case.k, case.v, TreeContext(10, case.tree_mask), window=6, backend=backend
        )
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
        assert (out - derived).abs().max() > 1e-3


def test_a_value_size_of_its_own() -> None:
    case = make_case(nodes=5, prefix_lens=(11, 6))
    values = case.v[..., :16].contiguous()
    context = TreeContext(case.prefix_lens, case.tree_mask)
    exact, _ = reference_attention(case.q, case.k, values, context)
    for backend in FAST:
        out, _ = attend(case.q, case.k, values, context, backend=backend)
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_context_serves_layers_with_different_windows_and_head_counts() -> None:
    context = TreeContext((19, 8), make_case(nodes=7).tree_mask)
    for heads in ((4, 2), (9, 3), (4, 4)):
        for window in (None, 5, 2):
            case = make_case(nodes=7, prefix_lens=(19, 8), heads=heads, seed=heads[0])
            exact, _ = reference_attention(case.q, case.k, case.v, context, window=window)
            for backend in FAST:
                out, _ = attend(case.q, case.k, case.v, context, window=window, backend=backend)
                torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_fp64_is_computed_in_fp64() -> None:
    case = make_case(nodes=6, prefix_lens=(9, 14), dtype=torch.float64)
    context = TreeContext(case.prefix_lens, case.tree_mask)
    exact, exact_lse = reference_attention(case.q, case.k, case.v, context, window=7)
    for backend in FAST:
        out, lse = attend(case.q, case.k, case.v, context, window=7, backend=backend)
        torch.testing.assert_close(out, exact, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lse, exact_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "fast"}, "backend must be one of"),
        ({"window": 0}, "window must be at least 1"),
        ({"softcap": 0.0}, "softcap must be positive"),
        ({"sinks": torch.zeros(3)}, "sinks must have shape"),
        ({"prefix_lens": 100}, "write the tree rows before attending"),
        ({"prefix_lens": -1}, "non-negative"),
        ({"prefix_lens": torch.tensor([1.0])}, "must be integers"),
        ({"prefix_starts": 21}, "must not exceed"),
        ({"prefix_lens": (1, 2, 3)}, "are for 3 rows"),
        ({"tree_mask": torch.ones(1, 5, 5, dtype=torch.bool)}, "q has 6 rows"),
        ({"tree_mask": torch.ones(6, 6)}, "bool tensor of shape"),
        ({"depths": torch.zeros(1, 5, dtype=torch.int64)}, "depths must be integers"),
        ({"q": torch.zeros(1, 3, 6, 32)}, "multiple of 2 key heads"),
        ({"q": torch.zeros(1, 4, 6, 64)}, "head size"),
        ({"q": torch.zeros(1, 4, 6, 32, dtype=torch.float16)}, "share a float dtype"),
        ({"q": torch.zeros(4, 6, 32)}, "four dimensions"),
        ({"q": torch.zeros(1, 4, 6, 32, requires_grad=True)}, "no backward pass"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(change: dict[str, Any], message: str) -> None:
    case = make_case()
    arguments: dict[str, Any] = {"q": case.q, "k": case.k, "v": case.v, **case.arguments()}
    with pytest.raises(ValueError, match=message):
        tree_attention(**{**arguments, **change})
