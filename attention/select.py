"""Which backend `auto` takes, and the measurements behind it.

The rule
    1. CPU, fp32 or fp64: let `rows` be the query rows that share a key head (heads / key heads
       * n) and `span` the prefix slots that must be read. "sdpa" (one call) while rows * span
       <= 32,768, else "flash" (two calls and a merge). In a batch of different lengths one call
       reads every row as far as the longest, which costs as much as some 24 mask entries per slot
       read in vain: `span` grows by 24 times the mean of those.
    2. CPU, 16 bits: "sdpa". The two-part form reads the prefix in fp32 there, because a kernel's
       result in 16 bits would be rounded once more before the merge (its largest error against
       fp64 was then at worst 2.7 times plain SDPA's); that costs a copy of the prefix per call.
       Over 400 random trees each in bf16, fp16 and fp32 both forms stay within twice SDPA's
       largest error: rms ratio 0.81, 0.80 and 0.99, largest error at worst 1.00, 1.00 and 1.85.
    3. CUDA: "flash".
    4. Other devices: "sdpa".
A tree of one node is one unmasked call under "flash", so it takes "flash" everywhere.
"flex" and "reference" are never picked: the first compiles for seconds, the second is slow.

Why: the two-part form pays a constant (a second kernel call, a merge: some 25 to 30 microseconds
per layer); the one call reads its mask once per head, and a key head's keys once per query head,
which counts where there are few rows. Microseconds per call, fp32, head size 64, one thread of a
2-core AMD EPYC (Zen 4), PyTorch 2.13, mask made anew per 8 layers, medians of 7 interleaved runs,
one call / two parts:

    heads n    rows   prefix 256   1,024         4,096           16,384
    9/3   4    12     110 / 149    331 / 328     1,701 / 1,333   7,828 / 4,939
    9/3   16   48     211 / 249    775 / 781     3,130 / 2,927   14,356 / 12,571
    9/3   64   192    734 / 792    2,451 / 2,335 9,329 / 8,521   40,772 / 34,999
    14/2  4    28     137 / 162    434 / 345     2,180 / 1,306   9,209 / 4,964
    14/2  16   112    290 / 341    1,086 / 1,183 4,370 / 3,996   19,245 / 17,291
    14/2  64   448    1,114/1,192  3,673 / 3,498 13,979 / 12,723 65,663 / 54,817

The crossing lies between 12,000 and some 220,000 mask entries, low where rows are few. Four rows
of different lengths, 9/3 heads, processor time in microseconds, one call / two parts:

    prefixes                    n = 4           n = 16          n = 32
    200, 210, 190, 205          183 / 319       542 / 762       1,171 / 1,469
    600, 620, 650, 500          480 / 557       1,548 / 1,619   3,210 / 3,104
    100, 400, 800, 1500         1,010 / 606     3,832 / 1,827   7,204 / 3,419
    200, 800, 1500, 3000        2,724 / 1,075   7,902 / 3,620   14,654 / 6,623

Rule 3 is a guess from how the kernels work (no mask traffic, split over keys), not a measurement:
nothing in this package has run on a GPU yet. `bench/attention.py` prints the table for any machine.
"""

from __future__ import annotations

import torch

from .context import TreeContext

BACKENDS = ("auto", "flash", "sdpa", "flex", "reference")
CPU_MASK_ENTRIES = 32_768
IN_VAIN = 24


def choose_backend(
    context: TreeContext, *, device: str, dtype: torch.dtype, group: int, window: int | None
) -> str:
    """Backend for a pass: "flash" or "sdpa".

    device: device type; dtype: of the queries; group: query heads per key head; window: in
    positions, or None.
    """
    if context.single:
        return "flash"
    if device == "cpu":
        if dtype in (torch.float16, torch.bfloat16):
            return "sdpa"
        spans = context.spans(window)
        span = max(s.length for s in spans) - min(s.fringe_start for s in spans)
        used = sum(s.length - s.fringe_start for s in spans) / len(spans)
        cost = span + IN_VAIN * (span - used)
        return "sdpa" if group * context.width * cost <= CPU_MASK_ENTRIES else "flash"
    return "flash" if device == "cuda" else "sdpa"
