"""Tokens go to the experts whose logits say so, and get the weighted sum of these."""

import torch

from kernels.experts import Routing
from kernels.looped_experts import LoopedExperts, choose_experts
from kernels.reference import ReferenceBackend
from tests.kernels.experts_cases import expected, make_weights, part_of

_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)


def test_the_best_are_chosen_with_the_lower_id_first_among_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    ids, weights = choose_experts(logits, None, Routing(top_k=3))
    assert ids.tolist() == [[1, 3, 2], [0, 1, 2]]
    torch.testing.assert_close(weights, logits.softmax(-1).gather(1, ids))


def test_weights_are_renormalised_and_scaled() -> None:
    logits = torch.randn(5, 8)
    ids, weights = choose_experts(logits, None, Routing(top_k=2, renormalises=True, scale=3.0))
    torch.testing.assert_close(weights, 3.0 * logits.gather(1, ids).softmax(-1))


def test_a_bias_changes_the_choice_and_no_weight() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    routing = Routing(top_k=1, score="sigmoid")
    ids, weights = choose_experts(logits, torch.tensor([0.0, 0.0, 5.0]), routing)
    assert ids.tolist() == [[2]]
    torch.testing.assert_close(weights, logits[:, 2:].sigmoid())


def test_experts_are_chosen_within_the_groups_whose_two_best_are_best() -> None:
    # the best of all is in the first group, the best pair in the last
    logits = torch.tensor([[5.0, -9.0, 0.1, 0.2, 3.0, 3.1]])
    routing = Routing(top_k=2, score="sigmoid", num_groups=3, num_top_groups=1)
    assert choose_experts(logits, None, routing)[0].tolist() == [[5, 4]]


def test_rows_that_are_not_finite_get_experts_that_exist() -> None:
    logits = torch.tensor([[float("nan")] * 4, [float("inf")] * 4, [float("-inf")] * 4])
    for score in ("softmax", "sigmoid"):
        ids, _ = choose_experts(logits, None, Routing(top_k=2, score=score))
        assert ids.min() >= 0
        assert ids.max() < 4


def test_a_loop_over_experts_adds_up_what_each_computes() -> None:
    torch.manual_seed(0)
    routing = Routing(top_k=3, renormalises=True)
    for limit in (0.0, 0.5):
        weights = make_weights((7, 24, 20), has_biases=True, limit=limit)
        x = torch.randn(9, 24)
        layer = LoopedExperts(_BACKEND, weights, routing)
        torch.testing.assert_close(layer(x), expected(x, weights, routing))


def test_ranks_that_hold_some_experts_add_up_to_all() -> None:
    torch.manual_seed(0)
    weights, x = make_weights((6, 24, 20), has_biases=True), torch.randn(9, 24)
    total = torch.zeros_like(x)
    for start in (0, 3):
        routing = Routing(top_k=2, first_expert=start)
        part = part_of(weights, range(start, start + 3))
        total += LoopedExperts(_BACKEND, part, routing)(x)
    torch.testing.assert_close(total, expected(x, weights, Routing(top_k=2)))
