"""Every causal LM class of transformers, tiny and random: does the engine give the same text?

    python -m lookahead.bench.sweep --out bench/results

Each class is built tiny (``tiny_models``), decoded by plain ``generate`` and by the engine,
greedily and sampled, one prompt and a left-padded batch, and compared token by token. Guesses come
from a source that knows the plain text and errs on purpose (``oracle``), so that every length of
accepted run and every kind of rejection occurs. Classes run in worker processes: one that crashes
or hangs is reported and the rest goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import click
import torch
import transformers
from torch import Tensor

import lookahead
from lookahead.bench.oracle import Book, OracleSource
from lookahead.bench.tiny_models import VOCABULARY, causal_lm_types, tiny_model
from lookahead.config import Config, PlannerConfig

NEW_TOKENS = 34
SEED = 7
_SECONDS_A_CLASS = 120


def sweep_class(model_type: str) -> dict[str, Any]:
    """Build, decode both ways and compare one model type. Plain values, never raises."""
    begin = time.perf_counter()
    row: dict[str, Any] = {"type": model_type, "class": "", "mode": "", "reason": "", "cases": {}}
    try:
        model = tiny_model(model_type)
        row["class"] = type(model).__name__
        cases = make_cases()
        _run_plain(model, cases["short greedy"])  # some models change themselves at the first call
        plain = {name: _run_plain(model, case) for name, case in cases.items()}
    except Exception as error:
        return {**row, "result": "not run", "reason": _one_line(error)}
    try:
        _compare(model, cases, plain, row)
    except Exception as error:
        row.update(result="engine failed", reason=_one_line(error))
    row["seconds"] = round(time.perf_counter() - begin, 2)
    return row


def make_cases() -> dict[str, dict[str, Any]]:
    """Arguments of ``generate`` by name."""
    draw = torch.Generator().manual_seed(SEED)
    short, long = (torch.randint(3, VOCABULARY - 20, (1, n), generator=draw) for n in (5, 12))
    batch = torch.zeros(2, 12, dtype=torch.int64)
    batch[0, 7:], batch[1] = short[0], long[0]
    inputs = {"short": short, "long": long, "batch": batch}
    cases = {}
    for name, ids in inputs.items():
        mask = torch.ones_like(ids)
        if name == "batch":
            mask[0, :7] = 0
        for sample in (False, True):
            kind = "sampled" if sample else "greedy"
            cases[f"{name} {kind}"] = {
                "input_ids": ids,
                "attention_mask": mask,
                "do_sample": sample,
                "max_new_tokens": NEW_TOKENS,
            }
    del cases["short sampled"]
    return cases


def _run_plain(model: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(SEED)
    ids = model.generate(**case)
    return ids, torch.get_rng_state()


def _compare(
    model: Any,
    cases: dict[str, dict[str, Any]],
    plain: dict[str, tuple[Tensor, Tensor]],
    row: dict[str, Any],
) -> None:
    book = Book()
    config = Config(planner=PlannerConfig(max_nodes=16, fixed_nodes=12), remember_cost=False)
    engine = lookahead.wrap(model, config, sources=[lambda: OracleSource(book, VOCABULARY)])
    row.update(mode=engine.capability.mode, reason=engine.capability.reason)
    passes, tokens, different = 0, 0, []
    for name, case in cases.items():
        expected, state = plain[name]
        width = case["input_ids"].shape[1]
        for ids, mask in zip(expected, case["attention_mask"], strict=True):
            book.add(ids[:width][mask.bool()].tolist(), ids[width:].tolist())
        torch.manual_seed(SEED)
        seen = engine.generate(**case)
        at = _first_difference(seen, expected)
        if at is None and not torch.equal(torch.get_rng_state(), state):
            at = -1
        row["cases"][name] = {
            "mode": engine.stats.mode,
            "different_at": at,
            "tokens_per_pass": round(engine.stats.tokens_per_pass, 2),
        }
        if at is not None:
            different.append(f"{name} at {at}")
        passes, tokens = passes + engine.stats.passes, tokens + engine.stats.tokens
    row["tokens_per_pass"] = round(tokens / passes, 2) if passes else 0.0
    row["result"] = "different: " + "; ".join(different) if different else "equal"


def _first_difference(seen: Tensor, expected: Tensor) -> int | None:
    if seen.shape != expected.shape:
        return min(seen.shape[1], expected.shape[1])
    columns = (seen != expected).any(0).nonzero()
    return int(columns[0]) if len(columns) else None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


# -- workers --------------------------------------------------------------------------------


def work() -> None:
    """Worker: model types on standard input, one JSON line each on standard output."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    answers = sys.stdout
    sys.stdout = sys.stderr  # models print
    for line in sys.stdin:
        print(json.dumps(sweep_class(line.strip())), file=answers, flush=True)


class Worker:
    """A worker process that is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: Queue[str] = Queue()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "lookahead.bench.sweep", "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines = Queue()
        Thread(target=self._read, args=(process, self._lines), daemon=True).start()
        return process

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    def ask(self, model_type: str) -> dict[str, Any]:
        """The row of a model type; a crash or a hang becomes a row too."""
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(model_type + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=_SECONDS_A_CLASS)
        except Empty:
            line, reason = "", f"took more than {_SECONDS_A_CLASS} s"
        else:
            reason = "the process died"
        if line:
            row: dict[str, Any] = json.loads(line)
            return row
        self.close()
        return {
            "type": model_type,
            "class": "",
            "mode": "",
            "reason": reason,
            "cases": {},
            "result": "engine failed",
        }

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _ask_all(types: list[str], jobs: int) -> Iterator[dict[str, Any]]:
    """Rows in the order of ``types``, from several workers."""
    idle: Queue[Worker] = Queue()
    for _ in range(jobs):
        idle.put(Worker())

    def ask(model_type: str) -> dict[str, Any]:
        worker = idle.get()
        try:
            return worker.ask(model_type)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(ask, types)
    while not idle.empty():
        idle.get().close()


# -- the report -----------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of a sweep. ``share_tree``: of the classes that could be run."""
    ran = [row for row in rows if row["result"] != "not run"]
    modes = Counter(row["mode"] for row in ran)
    return {
        "classes": len(rows),
        "ran": len(ran),
        "not_run": len(rows) - len(ran),
        "equal": sum(row["result"] == "equal" for row in ran),
        "different": sum(row["result"].startswith("different") for row in ran),
        "failed": sum(row["result"] == "engine failed" for row in ran),
        "tree": modes["tree"],
        "chain": modes["chain"],
        "plain": modes["plain"],
        "share_tree": round(modes["tree"] / max(1, len(ran)), 3),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table by class."""
    counts = summary(rows)
    lines = [
        "# Every causal language model class",
        "",
        "Tiny random models, fp32, CPU, one thread; greedy and seeded sampling, prompts of 5 and "
        f"12 tokens and both as a left-padded batch, {NEW_TOKENS} new tokens, compared token by "
        "token with `model.generate`. Made by `python -m lookahead.bench.sweep`, with "
        f"transformers {counts['transformers']} and torch {counts['torch']}.",
        "",
        f"{counts['ran']} of {counts['classes']} classes ran: {counts['equal']} equal, "
        f"{counts['different']} different, {counts['failed']} failed. Modes: {counts['tree']} tree "
        f"({100 * counts['share_tree']:.0f}%), {counts['chain']} chain, {counts['plain']} plain.",
        "",
        "Tokens per pass are those of guesses that are right on purpose; they show that guesses "
        "were accepted, not how fast the engine is.",
        "",
        "| model type | class | mode | result | tokens per pass | why not a stronger mode |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        reason = row["reason"].replace("|", "/")
        lines.append(
            f"| {row['type']} | {row['class']} | {row['mode'] or '-'} | {row['result']} "
            f"| {row.get('tokens_per_pass') or '-'} | {reason} |"
        )
    return "\n".join(lines) + "\n"


@click.command()
@click.argument("types", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write tables here.")
@click.option("--jobs", default=2, show_default=True, help="Worker processes.")
@click.option("--worker", is_flag=True, hidden=True)
def main(types: tuple[str, ...], out: Path | None, jobs: int, worker: bool) -> None:
    """Compare the engine with plain decoding on TYPES (all causal LM types by default)."""
    if worker:
        work()
        return
    unknown = sorted(set(types) - set(causal_lm_types()))
    if unknown:
        raise click.BadParameter(f"no causal LM type of transformers: {', '.join(unknown)}")
    asked = list(types) or causal_lm_types()
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for row in _ask_all(asked, jobs):
        rows.append(row)
        click.echo(f"{row['type']:24} {row['mode']:6} {row['result']:12} {row['reason']}")
    counts = summary(rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "models.md").write_text(markdown(rows))
        report = {"summary": counts, "rows": rows}
        (out / "models.json").write_text(json.dumps(report, indent=1) + "\n")
    click.echo(
        f"{time.perf_counter() - begin:.0f} s; share in tree mode {counts['share_tree']:.1%}"
    )
    click.echo(json.dumps(counts))
    if counts["different"] or counts["failed"]:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    main()
