"""Which backend `auto` takes, and the measurements behind it.

The rule
    1. CPU: let `rows` be the query rows that share a key head (heads / key heads * n) and `span`
       the prefix slots that must be read. "sdpa" (one call) while rows * span <= 65,536, else
       "flash" (two calls and a merge).
    2. CUDA: "flash".
    3. Other devices: "sdpa".
A tree of one node is one unmasked call under "flash", so it takes "flash" everywhere.
"flex" and "reference" are never picked: the first compiles for seconds, the second is slow.

Why: the two-part form pays a constant (a second kernel call, a merge: some 25 to 30 microseconds
per layer) and saves reading rows * span mask entries. Microseconds per call, fp32, head size 64,
one thread of a 2-core AMD EPYC (Zen 4), PyTorch 2.13, mask already made, medians of interleaved
runs, one call / two parts:

    heads n    rows   prefix 256   1,024         4,096           16,384
    9/3   4    12     59 / 81      181 / 200     686 / 699       5,203 / 5,069
    9/3   16   48     163 / 190    581 / 591     2,457 / 2,325   13,654 / 12,863
    9/3   64   192    656 / 691    2,267 / 2,183 9,659 / 8,767   41,181 / 36,967
    14/2  4    28     75 / 100     235 / 250     929 / 917       5,247 / 4,884
    14/2  16   112    235 / 262    880 / 858     3,699 / 3,381   20,080 / 18,285
    14/2  64   448    1,027/1,083  3,600 / 3,306 14,338 / 12,764 64,439 / 57,172

The crossing lies between 60,000 and 110,000 mask entries in every row of the table. Rule 2 is a
guess from how the kernels work (no mask traffic, split over keys), not a measurement: nothing in
this package has run on a GPU yet. `bench/attention.py` prints the table for any machine.
"""

from __future__ import annotations

from .context import TreeContext

BACKENDS = ("auto", "flash", "sdpa", "flex", "reference")
CPU_MASK_ENTRIES = 65_536


def choose_backend(context: TreeContext, *, device: str, group: int, window: int | None) -> str:
    """Backend for a pass: "flash" or "sdpa".

    device: device type; group: query heads per key head; window: positions, or None.
    """
    if context.single:
        return "flash"
    if device == "cpu":
        spans = context.spans(window)
        span = max(s.length for s in spans) - min(s.fringe_start for s in spans)
        return "sdpa" if group * context.width * span <= CPU_MASK_ENTRIES else "flash"
    return "flash" if device == "cuda" else "sdpa"
