"""One of several tensor-parallel processes: plain decoding and the engine, written to a file.

    torchrun --nproc-per-node 2 tensor_parallel_rank.py FOLDER

FOLDER/model holds the model; each rank writes FOLDER/rankN.txt. Fails where a text is not that of
the unsplit model.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import lookahead


def main(folder: Path) -> None:
    """Decode greedily and sampled, alone and in a batch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    whole = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    whole.generation_config.eos_token_id = None
    split = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, tp_plan="auto")
    split.generation_config.eos_token_id = None
    engine = lookahead.wrap(split, lookahead.Config(remember_cost=False))
    lines = [engine.capability.mode, engine.capability.reason]
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 100, (2, 7), generator=generator)
    for rows in (1, 2):
        for sample in (False, True):
            arguments = {
                "attention_mask": torch.ones_like(ids[:rows]),
                "max_new_tokens": 24,
                "do_sample": sample,
            }
            torch.manual_seed(3)
            expected = whole.generate(ids[:rows], **arguments)
            torch.manual_seed(3)
            seen = engine.generate(ids[:rows], **arguments)
            assert seen.tolist() == expected.tolist(), (rank, rows, sample)
            lines.append(f"{seen.tolist()} {engine.stats.passes} {engine.stats.widths}")
    (folder / f"rank{rank}.txt").write_text("\n".join(lines))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
