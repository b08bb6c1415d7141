"""Any model, any prompt, any options, any guesses, drawn at random: the text of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import lookahead
from lookahead.bench.oracle import Book, OracleSource
from lookahead.bench.tiny_models import VOCABULARY
from lookahead.config import Config, JacobiConfig, PlannerConfig, PoolConfig, RecyclingConfig
from tests.cases.comparing import padded, shared_model

FEW = ("llama", "gpt2", "gemma3_text", "bloom")
MANY = (
    *FEW,
    "mistral",
    "gemma2",
    "gpt_oss",
    "llama4_text",
    "opt",
    "phi3",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_bigcode",
    "mpt",
    "qwen3_next",
    "cohere2",
    "falcon",
    "mamba",
    "bart",
)

_sampling = st.fixed_dictionaries(
    {"do_sample": st.just(True)},
    optional={
        "temperature": st.sampled_from([0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 5, 50]),
        "top_p": st.sampled_from([0.5, 0.9, 1.0]),
        "min_p": st.sampled_from([0.02, 0.2]),
        "typical_p": st.sampled_from([0.6, 0.95]),
        "num_return_sequences": st.integers(1, 3),
    },
)
_processors = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "no_repeat_ngram_size": st.integers(2, 4),
        "min_new_tokens": st.integers(1, 12),
        "bad_words_ids": st.just([[7], [8, 9]]),
        "eos_token_id": st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=30),
        "use_cache": st.sampled_from([True, True, True, False]),
    },
)
_kept = st.sampled_from(
    [
        {},
        {"return_dict_in_generate": True},
        {"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    ]
)
_engines = st.fixed_dictionaries(
    {
        "planner": st.builds(
            PlannerConfig,
            max_nodes=st.just(24),
            fixed_nodes=st.one_of(st.none(), st.integers(0, 24)),
        ),
        "jacobi": st.builds(
            JacobiConfig,
            enabled=st.booleans(),
            window=st.integers(1, 5),
            ngram=st.integers(2, 4),
            always=st.booleans(),
            shared_noise=st.booleans(),
        ),
        "ngram_pool": st.builds(PoolConfig, enabled=st.booleans(), capacity=st.integers(1, 50)),
        "recycling": st.builds(
            RecyclingConfig,
            enabled=st.booleans(),
            capacity=st.integers(1, 50),
            prompt_positions=st.integers(0, 4),
        ),
        "prepack": st.booleans(),
        "compiled": st.booleans(),
    }
)


def _compare(data: Any, types: tuple[str, ...]) -> None:
    model = shared_model(data.draw(st.sampled_from(types), "model type"))
    lengths = data.draw(st.lists(st.integers(1, 13), min_size=1, max_size=4), "prompt lengths")
    seed = data.draw(st.integers(0, 10_000), "seed")
    arguments: dict[str, Any] = {
        **padded(*lengths, seed=seed),
        "max_new_tokens": data.draw(st.integers(1, 24), "new tokens"),
        "do_sample": False,
        **data.draw(st.one_of(st.just({}), _sampling), "sampling"),
        **data.draw(_processors, "processors"),
        **data.draw(_kept, "kept"),
    }
    torch.manual_seed(seed)
    expected = model.generate(**arguments)
    after = torch.get_rng_state()
    book = _book(arguments, expected)
    gap = data.draw(st.integers(0, 6), "every so many positions no right guess")
    engine = lookahead.wrap(
        model,
        Config(**data.draw(_engines, "engine"), remember_cost=False),
        sources=[lambda: OracleSource(book, VOCABULARY, gap)],
    )
    for _ in range(2):  # what the first call taught must not show in the second
        torch.manual_seed(seed)
        seen = engine.generate(**arguments)
        _assert_same(seen, expected)
        assert torch.equal(torch.get_rng_state(), after)
    event(f"mode {engine.stats.mode}")
    event(f"accepted some: {sum(engine.stats.accepted.values()) > 0}")


def _book(arguments: dict[str, Any], out: Any) -> Book:
    ids = out if isinstance(out, torch.Tensor) else out.sequences
    given_ids, mask = arguments["input_ids"], arguments["attention_mask"].bool()
    times = len(ids) // len(given_ids)
    book = Book()
    for row, text in enumerate(ids):
        tokens = given_ids[row // times][mask[row // times]].tolist()
        book.add(tokens, text[given_ids.shape[1] :].tolist())
    return book


def _assert_same(seen: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert seen.tolist() == expected.tolist()
        return
    assert seen.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        rows = getattr(expected, name)
        assert (rows is None) == (getattr(seen, name) is None)
        if rows is not None:
            torch.testing.assert_close(
                torch.stack(getattr(seen, name)), torch.stack(rows), atol=2e-4, rtol=2e-4
            )


@pytest.mark.filterwarnings("ignore:decoding plainly:UserWarning")
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints:UserWarning")  # both say so
@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_any_call_equals_plain_decoding(data: Any) -> None:
    _compare(data, FEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(st.data())
def test_any_call_of_many_model_types_equals_plain_decoding(data: Any) -> None:
    _compare(data, MANY)
