"""Models spread over devices, offloaded, or split between processes: the same text."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lookahead
from tests.cases.comparing import Pair, padded, shared_model, single


def _offloaded(kind: str) -> Any:
    accelerate = pytest.importorskip("accelerate")
    model = copy.deepcopy(shared_model("llama"))
    if kind == "cpu offload":
        return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "cpu"}
    places |= {"model.layers.2": "cpu", "model.layers.3": "cpu", "model.norm": "cpu"}
    places |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    return accelerate.dispatch_model(model, places, main_device="cpu", force_hooks=True)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("kind", ["cpu offload", "dispatched"])
def test_hooks_that_move_weights_are_kept(kind: str, sample: bool) -> None:
    pair = Pair(_offloaded(kind))
    stats = pair.assert_same(**single(6), max_new_tokens=16, do_sample=sample, mode="tree")
    assert sum(stats.accepted.values()) > 4
    pair.assert_same(**padded(6, 3), max_new_tokens=10, do_sample=sample, mode="tree")


def test_a_generating_thread_does_not_disturb_another_engine() -> None:
    from concurrent.futures import ThreadPoolExecutor

    engines = [lookahead.wrap(shared_model(name)) for name in ("llama", "mistral")]
    arguments = {**single(6), "max_new_tokens": 16, "do_sample": False}
    expected = [engine.model.generate(**arguments).tolist() for engine in engines]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(engine.generate, **arguments) for engine in engines]
        seen = [job.result().tolist() for job in jobs]
    assert seen == expected


_RANK = Path(__file__).with_name("tensor_parallel_rank.py")


@pytest.mark.slow
def test_two_tensor_parallel_processes_give_the_text_of_one(tmp_path: Path) -> None:
    shared_model("llama").save_pretrained(tmp_path / "model")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(_RANK), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    texts = [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)]
    assert texts[0] == texts[1]
    assert "tree" in texts[0]
