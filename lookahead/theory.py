"""Closed forms of speculative decoding, and the memory floor of a decoding step.

Notation: ``alpha`` is the probability that one guessed token is accepted, ``gamma`` the number of
guessed tokens in a chain, ``cost`` the price of one guess in units of a plain decoding step.
Tokens of a pass always include the bonus token, so an empty draft yields exactly one.

Sources: Leviathan, Kalman, Matias 2023 (arXiv:2211.17192), equation 1 and theorem 3.8, for
chains; Miao et al. 2023 (arXiv:2305.09781) for the tree whose path probabilities add up.
"""

import time
from collections.abc import Callable, Sequence

import torch


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of one pass over a chain of ``gamma`` guesses, between 1 and ``gamma + 1``.

    ``(1 - alpha^(gamma+1)) / (1 - alpha)``: equation 1 of arXiv:2211.17192. Every guess is
    accepted independently with probability ``alpha``, as the paper assumes.
    """
    _check_chain(alpha, gamma)
    if alpha == 1.0:
        return float(gamma + 1)
    return float((1.0 - alpha ** (gamma + 1)) / (1.0 - alpha))


def expected_speedup(alpha: float, gamma: int, cost: float) -> float:
    """Expected speedup over plain decoding: theorem 3.8 of arXiv:2211.17192.

    ``cost`` is the time of producing *and checking* one more guess over the time of a plain step.
    For a draft model it is the ratio of the two models; without a drafter it is the slope of the
    pass cost against its width.
    """
    _check_cost(cost)
    return expected_tokens(alpha, gamma) / (gamma * cost + 1.0)


def best_gamma(alpha: float, cost: float, limit: int = 64) -> int:
    """Chain length of the largest expected speedup; 0 where no guess pays; at most ``limit``.

    The speedup rises and then falls in ``gamma``, but the scan is over all lengths: it is cheap
    and needs no argument. Among equal speedups the shortest chain wins.
    """
    if limit < 0:
        raise ValueError(f"limit is {limit}, but the longest chain to try must be 0 or more")
    return max(range(limit + 1), key=lambda gamma: expected_speedup(alpha, gamma, cost))


def path_probabilities(parents: Sequence[int], probabilities: Sequence[float]) -> list[float]:
    """Probability that each node of a draft tree is reached, in the order of the nodes.

    ``parents[i]`` is the index of node ``i``'s parent, or -1 for a child of the root, and comes
    before ``i``. ``probabilities[i]`` is the probability that node ``i`` is accepted given that
    its parent is. A path's probability is the product along it.
    """
    if len(parents) != len(probabilities):
        raise ValueError(f"{len(parents)} parents but {len(probabilities)} probabilities")
    paths: list[float] = []
    for node, (parent, probability) in enumerate(zip(parents, probabilities, strict=True)):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}, which does not come before it")
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"node {node} has probability {probability}, not within 0 and 1")
        paths.append(probability * (1.0 if parent < 0 else paths[parent]))
    return paths


def expected_tree_tokens(parents: Sequence[int], probabilities: Sequence[float]) -> float:
    """Expected tokens of one pass over a tree: ``1 + sum_v p(path to v)`` (arXiv:2305.09781).

    Siblings exclude each other, as different next tokens do, so their probabilities may not add
    up to more than 1. A chain of equal probabilities gives :func:`expected_tokens`.
    """
    children: dict[int, float] = {}
    for parent, probability in zip(parents, probabilities, strict=False):
        children[parent] = children.get(parent, 0.0) + probability
    for parent, total in children.items():
        if total > 1.0 + 1e-9:
            raise ValueError(f"the children of node {parent} have total probability {total} > 1")
    return 1.0 + sum(path_probabilities(parents, probabilities))


def pass_speedup(tokens_per_pass: float, relative_pass_cost: float) -> float:
    """Speedup of a method by its tokens per pass and the cost of its pass in plain steps.

    The identity behind every figure of this kind: plain decoding pays 1 for each token.
    """
    if relative_pass_cost <= 0.0:
        raise ValueError(f"a pass cannot cost {relative_pass_cost} plain steps")
    return tokens_per_pass / relative_pass_cost


def best_budget(weights: Sequence[float], pass_cost: Callable[[int], float]) -> tuple[int, float]:
    """Number of nodes worth verifying and the tokens per unit of time it gives.

    ``weights`` are marginal path probabilities of nodes, ``pass_cost(n)`` the time of a pass over
    ``n`` tokens, the root included. Scans every budget of the likeliest nodes, because a measured
    cost is a staircase on which a greedy stop can miss a better, wider pass. Zero is a budget.
    """
    ranked = sorted(weights, reverse=True)
    tokens = 1.0
    best, best_rate = 0, tokens / pass_cost(1)
    for budget, weight in enumerate(ranked, start=1):
        tokens += weight
        rate = tokens / pass_cost(1 + budget)
        if rate > best_rate:
            best, best_rate = budget, rate
    return best, best_rate


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of weights that one decoding step of a dense model must read.

    Each storage counts once, so tied weights are not doubled. An input embedding that is not
    tied to the output is left out: a step reads one row of it. For a mixture of experts this is
    an upper bound, as a step reads only the chosen experts.
    """
    tensors = list(model.parameters()) + list(model.buffers())
    storages = {t.untyped_storage().data_ptr(): t.numel() * t.element_size() for t in tensors}
    total = sum(storages.values())
    embedding, head = _embeddings(model)
    if embedding is not None and (head is None or head.data_ptr() != embedding.data_ptr()):
        total -= embedding.numel() * embedding.element_size()
    return total


def kv_bytes(layers: int, kv_heads: int, head_dim: int, context: int, itemsize: int) -> int:
    """Bytes of keys and values that one step over ``context`` cached tokens must read."""
    return 2 * layers * kv_heads * head_dim * context * itemsize


def step_floor(bytes_read: int, bandwidth: float) -> float:
    """Least seconds of a step that reads ``bytes_read`` at ``bandwidth`` bytes per second.

    No arithmetic is counted: at batch 1 a step does about two operations per weight, far below
    what the processor can do while the weight is on its way.
    """
    if bandwidth <= 0.0:
        raise ValueError(f"bandwidth is {bandwidth} bytes per second, but must be positive")
    return bytes_read / bandwidth


def measure_bandwidth(
    device: torch.device | str = "cpu", megabytes: int = 256, repeats: int = 5
) -> float:
    """Read bandwidth of ``device`` in bytes per second: the best of several kernels and repeats.

    The buffer must be well beyond the last cache, hence the default size. The kernels are a sum,
    a matrix-vector product (what a decoding step does) and a copy (whose writes count too); the
    best of them is the fairest floor, as it is the hardest to beat.
    """
    if megabytes < 1 or repeats < 1:
        raise ValueError("measuring bandwidth needs at least one megabyte and one repeat")
    device = torch.device(device)
    columns = 1024
    matrix = torch.ones(megabytes * 256, columns, device=device)
    vector = torch.ones(columns, device=device)
    target = torch.empty_like(matrix)
    size = matrix.numel() * matrix.element_size()
    kernels: list[tuple[Callable[[], object], int]] = [
        (lambda: matrix.sum(), size),
        (lambda: torch.mv(matrix, vector), size),
        (lambda: target.copy_(matrix), 2 * size),
    ]
    best = 0.0
    for kernel, moved in kernels:
        kernel()
        for _ in range(repeats):
            best = max(best, moved / _seconds(kernel, device))
    return best


def _seconds(kernel: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    kernel()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _embeddings(model: torch.nn.Module) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    weights = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        getter = getattr(model, name, None)
        module = getter() if getter is not None else None
        weights.append(getattr(module, "weight", None))
    return weights[0], weights[1]


def _check_chain(alpha: float, gamma: int) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha}, but an acceptance rate lies within 0 and 1")
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}, but a draft has 0 or more tokens")


def _check_cost(cost: float) -> None:
    if cost < 0.0:
        raise ValueError(f"cost is {cost}, but a guess costs 0 or more plain steps")
