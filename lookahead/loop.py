"""The decode loop: a verified tree is a cache of logits.

1. Every row whose next logits are not known drafts a tree below its last emitted token
(``drafting``).
2. One pass computes the logits of all nodes of all trees (``model``).
3. Logits of the row's prefix -> processors -> pick -> emit -> stopping criteria (``emission``,
   ``sampling``): the plain sampling loop. While the picked token is a child of the current node the
   next logits are already there; when it is not, the row is settled: the cache keeps the walked
   path and the sources learn from the pass.

Rows of a batch keep their own pace, each with its own tree and length, unless something in the call
must see the whole batch at once; then all rows emit in step and a row that is ahead waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from lookahead.call import Call
from lookahead.stats import Step


def decode(call: Call) -> Iterator[Step]:
    """Run a prepared call; yields a step for each settled row. The result is in ``call``."""
    begin = time.perf_counter()
    call.prefill()
    while call.active_rows():
        starved = call.starved_rows()
        if starved:
            call.verify(starved)
        call.emit()
        yield from call.settle()
    call.stats.seconds_total = time.perf_counter() - begin
