"""wrap(model) -> Engine: what a user touches.

``generate`` lets transformers prepare a call (configuration, processors, criteria, inputs, cache)
and then runs the engine's loop on it. What the engine cannot do is handed to ``model.generate``
with one warning, or refused.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from lookahead.call import Call
from lookahead.capability import Capability
from lookahead.config import Config
from lookahead.emission import Emitter
from lookahead.fitting import Fit, fit
from lookahead.handover import (
    autocast_reason,
    config_reason,
    inputs_reason,
    plain_method,
    stream_tokens,
    switch_reason,
    without_adapter_wrapper,
)
from lookahead.kv_cache import CACHE_NAME
from lookahead.loop import decode
from lookahead.memory import Memory, SourceFactory
from lookahead.model import Target, input_device
from lookahead.preparation import Prepared, check_prompt, early_reason, needs_tokenizer, prepare
from lookahead.stats import Stats, Step

_AT_FIRST = 1024  # output positions allocated before the first token


class Engine:
    """Generates with a model exactly as the model would, in fewer passes.

    Attributes: ``model``, ``config``, ``fitted`` (what was found out about the model), ``stats``
    (of the last call), ``memory`` (what is kept between calls), ``pool`` (the n-gram pool, can be
    saved and loaded). One engine serves one call at a time; what it learns is kept for the next.
    """

    def __init__(
        self,
        model: Any,
        config: Config | None = None,
        *,
        tokenizer: Any = None,
        sources: Sequence[SourceFactory] = (),
        fitted: Fit | None = None,
    ) -> None:
        self.model = model
        self.config = config or Config()
        self.tokenizer = tokenizer
        self.stats = Stats()
        self.fitted = fitted or fit(model, self.config)
        self.memory = Memory(self.config, sources, self.fitted.cost)
        self._warned: set[str] = set()

    @property
    def capability(self) -> Capability:
        """What the model can do: "tree", "chain" or "plain", and why."""
        return self.fitted.capability

    def sibling(self, config: Config | None = None) -> Engine:
        """An engine over the same model that knows nothing of earlier texts.

        It shares what was found out about the model and what passes cost, so it is made at once.
        ``config`` replaces the options; those that choose the kind of passes stay as they are.
        """
        return Engine(
            self.model, config or self.config, tokenizer=self.tokenizer,
            sources=self.memory.extra, fitted=self.fitted,
        )  # fmt: skip

    @property
    def pool(self) -> Any:
        """The n-gram pool: ``save(path)``, ``load(path)``, ``len()``."""
        return self.memory.pool

    def save_pool(self, path: str | Path) -> None:
        """Write the n-gram pool to a file."""
        self.memory.pool.save(path)

    def load_pool(self, path: str | Path) -> None:
        """Add the n-grams of a file written by ``save_pool`` for a model of the same tokens.

        Raises ValueError if the file holds anything else.
        """
        embeddings = self.model.get_input_embeddings()
        self.memory.pool.load(path, getattr(embeddings, "num_embeddings", None))

    # -- the three ways to call ---------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Any:
        """Arguments and result of ``model.generate``; all but these two by name."""
        kwargs["generation_config"] = generation_config
        prepared, reason = self._prepare_or_reason(inputs, kwargs)
        if reason or prepared is None:
            return self._generate_plainly(reason, inputs, kwargs)
        streamer = kwargs.get("streamer")
        call, returns_cache = self._call(prepared, streamer)
        for _ in decode(call):
            pass
        return self._result(call, prepared, streamer, returns_cache)

    def stream(
        self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any
    ) -> Iterator[Step]:
        """The steps of ``generate``, as they are made. Arguments of ``model.generate``.

        Stopping early leaves engine, model and generator as after the tokens that were yielded.
        """
        kwargs["generation_config"] = generation_config
        streamer = kwargs.get("streamer")
        inference = torch.is_inference_mode_enabled()
        with torch.no_grad():
            prepared, reason = self._prepare_or_reason(inputs, kwargs)
        if reason or prepared is None:
            yield from self._stream_plainly(reason, inputs, kwargs)
            return
        call, returns_cache = self._call(prepared, streamer)
        steps = decode(call)
        while True:
            # The cache can only be written in the mode that it was made in.
            with torch.inference_mode(inference), torch.no_grad():
                step = next(steps, None)
            if step is None:
                break
            yield step
        self.fitted.remember_cost(self.stats.seconds_measuring)
        if streamer is not None:
            streamer.end()
        if returns_cache:
            with torch.inference_mode(inference), torch.no_grad():
                call.export(call.prompt_cache)

    def custom_generate(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """For ``model.generate(..., custom_generate=engine.custom_generate)``.

        transformers gives such a function no streamer; use ``engine.generate`` to stream.
        """
        if model is not self.model:
            raise ValueError("this engine wraps another model; wrap the one that generates")
        prepared = Prepared(
            input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
        )
        self.fitted.renew(self.config)
        reason = (
            autocast_reason(self.model)
            or self.capability.plain_reason
            or config_reason(generation_config)
            or inputs_reason(model_kwargs)
            or self._rows_reason(prepared)
        )
        if reason:
            self._warn(reason)
            return plain_method(model, generation_config)(
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                **model_kwargs,
            )
        call, returns_cache = self._call(prepared, None)
        for _ in decode(call):
            pass
        return self._result(call, prepared, None, returns_cache)

    # -- parts --------------------------------------------------------------------------------

    def _prepare_or_reason(
        self, inputs: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Prepared | None, str]:
        """The prepared call, or why it is decoded plainly."""
        self.fitted.renew(self.config)
        reason = (
            autocast_reason(self.model)
            or self.capability.plain_reason
            or early_reason(self.model, kwargs)
        )
        if reason:
            return None, reason
        prepared = prepare(self.model, inputs, kwargs, self.tokenizer)
        reason = inputs_reason(prepared.model_kwargs) or self._rows_reason(prepared)
        return prepared, reason

    def _rows_reason(self, prepared: Prepared) -> str:
        rows, length = prepared.input_ids.shape
        mask = prepared.model_kwargs.get("attention_mask")
        return self.capability.rows_reason(rows, mask) or switch_reason(
            self.model, rows, length, prepared.generation_config.max_length
        )

    def _call(self, prepared: Prepared, streamer: Any) -> tuple[Call, bool]:
        config = prepared.generation_config
        kwargs = prepared.model_kwargs
        returns_cache = bool(config.return_dict_in_generate) or getattr(
            kwargs.get(CACHE_NAME), "_is_user_defined", False
        )
        # A length that only an end token keeps finite is not allocated in advance.
        capacity = min(config.max_length, prepared.input_ids.shape[1] + _AT_FIRST) + 1
        emitter = Emitter(
            prepared.input_ids,
            capacity,
            prepared.logits_processor or [],
            prepared.stopping_criteria or [],
            config,
        )
        chain = self.capability.mode == "chain"
        static = self.fitted.static if self.fitted.static and self.fitted.static.free else None
        call = Call(
            Target(self.fitted.passes.module(), self.capability.mode, static),
            self.memory,
            emitter,
            prepared.input_ids,
            kwargs,
            config,
            streamer,
            chain=chain,
            kernels=self.fitted.passes.used_kernels,
            in_step=not emitter.row_independent or returns_cache or streamer is not None,
        )
        if streamer is not None:
            streamer.put(prepared.input_ids.cpu())
        self.stats = call.stats
        if static is not None:
            static.user = weakref.ref(call)
        return call, returns_cache

    def _result(self, call: Call, prepared: Prepared, streamer: Any, returns_cache: bool) -> Any:
        self.fitted.remember_cost(self.stats.seconds_measuring)
        if streamer is not None:
            streamer.end()
        cache = call.prompt_cache
        if returns_cache:
            call.export(cache)
        ids = call.output()
        if not prepared.generation_config.return_dict_in_generate:
            return ids
        logits = call.emitter.logits
        return GenerateDecoderOnlyOutput(
            sequences=ids,
            scores=call.emitter.scores_so_far(),
            logits=tuple(logits) if logits is not None else None,
            attentions=None,
            hidden_states=None,
            **{CACHE_NAME: cache},
        )

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"decoding plainly: {reason}", UserWarning, stacklevel=3)

    def _generate_plainly(self, reason: str, inputs: Tensor | None, kwargs: dict[str, Any]) -> Any:
        self._warn(reason)
        self.stats = Stats(mode="plain")
        if kwargs.get("tokenizer") is None and needs_tokenizer(self.model, kwargs):
            kwargs = {**kwargs, "tokenizer": self.tokenizer}
        return self.model.generate(inputs, **kwargs)

    def _stream_plainly(
        self, reason: str, inputs: Tensor | None, kwargs: dict[str, Any]
    ) -> Iterator[Step]:
        check_prompt(inputs if inputs is not None else kwargs.get("input_ids"))
        if kwargs.get("streamer") is not None:
            raise ValueError("stream() yields the tokens itself here; leave out streamer")
        begin = time.perf_counter()
        tokens = stream_tokens(
            lambda streamer: self._generate_plainly(
                reason, inputs, {**kwargs, "streamer": streamer}
            ),
            input_device(self.model).type,
        )
        for step in tokens:
            now = time.perf_counter()
            yield Step(step, ["model"] * len(step), 0, now - begin)
            begin = now


def wrap(
    model: Any,
    config: Config | None = None,
    *,
    tokenizer: Any = None,
    sources: Sequence[SourceFactory] = (),
) -> Engine:
    """An engine for a causal language model of transformers, which stays as it is.

    ``config``: options, see ``Config``. ``tokenizer``: needed for stop strings only. ``sources``:
    makers of further sources of guesses (``lookahead.sources.Source``), called once for each row of
    a call. The model is tried out on a few random tokens; ``engine.capability`` says what was
    found. A PEFT model may be given; its adapters stay in force. Raises TypeError if ``model`` is
    no generative model of transformers.
    """
    model = without_adapter_wrapper(model)
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise TypeError(
            f"{type(model).__name__} is no generative model of transformers; "
            "load one with AutoModelForCausalLM.from_pretrained"
        )
    if config is not None and not isinstance(config, Config):
        raise TypeError(f"config must be a lookahead.Config, got {type(config).__name__}")
    return Engine(model, config, tokenizer=tokenizer, sources=sources)
