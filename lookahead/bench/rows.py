"""Rows: one timed generation each, kept on disk as they come so that no run is lost.

The file is JSONL. Its first line is the header, which holds the settings and their fingerprint;
each further line is one row. A line that was cut off by a crash is dropped when it is read.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .settings import Settings
from .timing import Pass, Timing


@dataclass(frozen=True)
class Row:
    """One generation by one method.

    ``case`` names prompt and turn. ``equal`` tells whether the tokens are those of plain decoding
    in the same run (None where equality is not promised); ``verdict`` is the exactness verdict
    where they are not. ``stats`` is ``Stats.to_dict()`` of the engine, None for other methods.
    ``seconds_once`` is what the engine spent on measuring the machine, once in its life; it is not
    in ``seconds`` and ``seconds_prefill``, because a cold engine would pay it for every prompt.
    """

    case: str
    category: str
    method: str
    prompt_ids: list[int]
    tokens: list[int]
    seconds: float
    seconds_prefill: float
    first_tokens: int
    passes: list[Pass] | None = None
    seconds_model: float | None = None
    peak_bytes: int | None = None
    equal: bool | None = None
    verdict: dict[str, Any] | None = None
    stats: dict[str, Any] | None = field(default=None, repr=False)
    seconds_once: float = 0.0

    @classmethod
    def from_timing(
        cls, case: str, category: str, method: str, prompt_ids: list[int], timing: Timing
    ) -> "Row":
        """A row of ``timing``, not yet compared with plain decoding."""
        values = {name: getattr(timing, name) for name in Timing.__dataclass_fields__}
        return cls(case=case, category=category, method=method, prompt_ids=prompt_ids, **values)

    def to_json(self) -> str:
        """One line of JSON; passes become triples to keep the file small."""
        values = asdict(self)
        if self.passes is not None:
            values["passes"] = [[p.width, round(p.seconds, 7), p.emitted] for p in self.passes]
        return json.dumps(values)

    @classmethod
    def from_json(cls, line: str) -> "Row":
        """The row that :meth:`to_json` wrote."""
        values = json.loads(line)
        if values["passes"] is not None:
            values["passes"] = [Pass(*triple) for triple in values["passes"]]
        return cls(**values)


def start_file(path: Path, settings: Settings, rows: Iterable[Row] = ()) -> None:
    """Write the header and ``rows`` of a new file, which replaces an earlier one at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"settings": asdict(settings), "fingerprint": settings.fingerprint()}
    part = path.with_name(path.name + ".part")
    part.write_text("".join(line + "\n" for line in [json.dumps(header), *_lines(rows)]))
    part.replace(path)


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add ``rows`` in one write, so that a case is on disk whole or not at all."""
    text = "".join(line + "\n" for line in _lines(rows))
    with path.open("a") as file:
        file.write(text)


def _lines(rows: Iterable[Row]) -> list[str]:
    return [row.to_json() for row in rows]


def read_file(path: Path) -> tuple[Settings, list[Row]]:
    """Settings and rows of a file. Raises ValueError where it is no file of rows."""
    try:
        first, *lines = path.read_text().splitlines()
        settings = Settings.from_dict(json.loads(first)["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no rows of a benchmark run") from error
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(Row.from_json(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) + 1:
                break  # the write of the last line was cut off
            raise ValueError(f"{path}, line {number}: not a row of a benchmark run") from error
    return settings, rows


def resume(path: Path, settings: Settings) -> list[Row]:
    """Rows of an earlier, interrupted run with the same settings; the file is mended.

    Raises ValueError where the file belongs to a run with other settings.
    """
    earlier, rows = read_file(path)
    if earlier.fingerprint() != settings.fingerprint():
        ours, theirs = asdict(settings), asdict(earlier)
        names = ", ".join(name for name in ours if ours[name] != theirs[name])
        raise ValueError(f"{path} is of a run with other settings ({names}): use another folder")
    start_file(path, settings, rows)
    return rows
