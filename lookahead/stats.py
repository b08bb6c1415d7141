"""What a call proposed, accepted and paid, by source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One pass and the tokens it gave, for one row of the batch.

    ``sources[i]`` names who guessed ``tokens[i]``: ``"model"`` where nobody did (the bonus token
    at the end of a run, or a plain step). ``nodes`` counts verified guesses, the root not
    included; ``seconds`` is the wall time of the step.
    """

    tokens: list[int]
    sources: list[str]
    nodes: int
    seconds: float
    row: int = 0


@dataclass
class Stats:
    """Counts and seconds of one call, summed over the rows of the batch.

    ``passes`` counts forward passes after the prefill, per row that took part; ``proposed`` and
    ``accepted`` count tree nodes by source, a node guessed by several counting for each;
    ``accepted_by_depth[d]`` and ``proposed_by_depth[d]`` count nodes at depth ``d + 1``;
    ``widths[n]`` counts passes over ``n`` tokens. ``predicted_tokens`` is what the planner
    expected of those passes; ``seconds_measuring`` is the part of the prefill that timed pass
    widths.
    """

    tokens: int = 0
    passes: int = 0
    nodes: int = 0
    proposed: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    proposed_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)
    seconds_by_width: dict[int, float] = field(default_factory=dict)
    seconds_total: float = 0.0
    seconds_prefill: float = 0.0
    seconds_model: float = 0.0
    seconds_measuring: float = 0.0
    seconds_planning: float = 0.0
    seconds_picking: float = 0.0
    predicted_tokens: float = 0.0
    predicted_cost: float = 0.0
    mode: str = "tree"

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens per pass after the prefill (the prefill itself gives one per row)."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def predicted_speedup(self) -> float:
        """Speedup over single-token passes that the planner expected, host time left out."""
        return self.predicted_tokens / self.predicted_cost if self.predicted_cost else 1.0

    @property
    def nodes_per_pass(self) -> float:
        """Mean verified guesses per pass."""
        return self.nodes / self.passes if self.passes else 0.0

    @property
    def seconds_outside(self) -> float:
        """Decoding time spent outside the model."""
        return max(0.0, self.seconds_total - self.seconds_prefill - self.seconds_model)

    @property
    def share_outside(self) -> float:
        """Share of decoding time (prefill excluded) spent outside the model."""
        decoding = self.seconds_total - self.seconds_prefill
        return self.seconds_outside / decoding if decoding > 0 else 0.0

    def count_depth(self, proposed: list[int], accepted: int) -> None:
        """Count the depths of proposed nodes and an accepted path of ``accepted`` nodes."""
        deepest = max(proposed, default=0)
        grow = max(deepest, accepted) - len(self.proposed_by_depth)
        if grow > 0:
            self.proposed_by_depth += [0] * grow
            self.accepted_by_depth += [0] * grow
        for depth in proposed:
            self.proposed_by_depth[depth - 1] += 1
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, derived figures included."""
        return {
            **asdict(self),
            "tokens_per_pass": self.tokens_per_pass,
            "predicted_speedup": self.predicted_speedup,
            "nodes_per_pass": self.nodes_per_pass,
            "seconds_outside": self.seconds_outside,
            "share_outside": self.share_outside,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.tokens} tokens in {self.passes} passes: {self.tokens_per_pass:.2f} tokens and "
            f"{self.nodes_per_pass:.1f} guesses a pass ({self.mode})",
            f"{self.seconds_total:.2f} s: prefill {self.seconds_prefill:.2f}, model "
            f"{self.seconds_model:.2f}, outside {self.seconds_outside:.2f}",
        ]
        lines += [
            f"  {name}: {self.accepted.get(name, 0)} of {count} accepted"
            for name, count in sorted(self.proposed.items())
        ]
        return "\n".join(lines)
