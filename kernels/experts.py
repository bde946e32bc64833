"""What a mixture of experts is: how experts are chosen, and their weights.

A token goes to the experts whose router logits are highest, and gets the weighted sum of what they
compute (arXiv:2101.03961; routers with scores of their own: DeepSeek-V3, arXiv:2412.19437).
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How experts are chosen and weighted.

    Attributes:
        top_k: experts of a token.
        score: what becomes of the logits, over all experts.
        renormalises: whether the weights of a token are divided by their sum.
        scale: factor of all weights.
        num_groups, num_top_groups: experts are chosen within the groups, of equally many each,
            whose two best have the highest sums.
        first_expert: of those that this rank holds, in whole; the others are left out.
    """

    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalises: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_top_groups: int = 1
    first_expert: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """The weights of a layer's experts, of which a rank may hold a part.

    Attributes:
        router: [experts, hidden], of all ranks' experts.
        router_bias: [experts], added to the logits.
        choice_bias: [experts] float32, added to the scores to choose by, not to the weights.
        gate_up: [held, 2 * intermediate, hidden], rows of gate and up matrix by turns.
        gate_up_bias: [held, 2 * intermediate].
        down: [held, hidden, intermediate].
        down_bias: [held, hidden].
        limit: 0 for silu(gate) * up. Else gate is cut at most at the limit, up at both signs of it,
            and gate * sigmoid(1.702 * gate) * (up + 1) is computed (gpt-oss).
    """

    router: Tensor
    router_bias: Tensor | None = None
    choice_bias: Tensor | None = None
    gate_up: Tensor
    gate_up_bias: Tensor | None = None
    down: Tensor
    down_bias: Tensor | None = None
    limit: float = 0.0
