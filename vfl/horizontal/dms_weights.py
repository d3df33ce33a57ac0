"""Aggregation weights of T-SFL: Corollary 1, Theorem 3, and the bounds that both respect.

Shao et al., "Robust Model Aggregation for Heterogeneous Federated Learning: Analysis and Optimizations", eq. 4-6, 10
and 11. The formulas are the printed ones: weights grow with the number of steps. (In the derivative of eq. 2 the
terms with A and C have the other sign, by which slow clients would weigh more; the paper's experiments use what is
printed.) Where the paper is silent: negative weights of Corollary 1 become 0 and the rest is scaled to sum to 1. The
others share equally what theta cuts off. Theorem 3 takes w_i for the optimum w_i*, the mean w_i for w*, and one
interval for the sums over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ITERATIONS = 100
"""Iterations after which Theorem 3's fixed point is used as it is."""
TOLERANCE = 1e-12
"""Largest change of a weight at which the fixed point counts as reached."""


@dataclass(frozen=True)
class Bounds:
    """Known bounds of the clients' objectives, in the paper's letters."""

    learning_rate: float
    """eta"""
    lipschitz: float
    """L: every F_i is L-smooth."""
    squared_gradient: float
    """G^2: limit of the mean squared norm of a step's gradient."""
    clients: int
    """N: clients of an interval."""
    most_steps: int
    """H"""

    def slope(self, variance: float) -> float:
        """Return c of Corollary 1, eta L (H - 1) G^2 / (2 N sigma^2); 0 if the variance is 0."""
        if self.most_steps == 1 or variance <= 0:
            return 0.0
        numerator = self.learning_rate * self.lipschitz * (self.most_steps - 1) * self.squared_gradient
        return numerator / (2 * self.clients * variance)


@dataclass(frozen=True)
class Kept:
    """Known quantities of one client that is kept."""

    steps: int
    """tau_i"""
    variance: float
    """sigma_i^2 of its gradients, above 0."""
    distance: float
    """Gamma_i = |w* - w_i*|^2"""


def corollary1_weights(steps: Sequence[int], slope: float) -> list[float]:
    """Return weights that sum to 1 and differ by ``slope`` times the difference of the steps (eq. 6).

    They are 1/|S| + c (tau_i - mean tau); negative ones are set to 0 and the others scaled to the sum of 1.
    """
    mean = sum(steps) / len(steps)
    return on_simplex([1 / len(steps) + slope * (each - mean) for each in steps])


def theorem3_weights(
    clients: Sequence[Kept], distance: float, bounds: Bounds, theta: float
) -> tuple[list[float], int, float]:
    """Return the weights of eq. 10, the iterations taken and the last change of a weight.

    rho_i = (B E_i + F (A Gamma_i + C tau_i)) / (2 F eta^2 N sigma_i^2), where E_i and F depend on all weights
    (eq. 11): the formula is applied to its own result, from equal weights on, scaled to the sum of 1 each time.
    The sums over intervals have the present one only. ``distance`` is |w^0 - w*|^2.
    """
    weights, change = [1 / len(clients)] * len(clients), 0.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        before = weights
        weights = on_simplex(_theorem3_map(before, clients, distance, bounds, theta))
        change = max(abs(new - old) for new, old in zip(weights, before, strict=True))
        if change <= TOLERANCE:
            return weights, iteration, change
    return weights, MAX_ITERATIONS, change


def on_simplex(weights: Sequence[float]) -> list[float]:
    """Return the weights with negative ones set to 0 and the others scaled to the sum of 1; equal if all are 0."""
    positive = [max(weight, 0.0) for weight in weights]
    total = sum(positive)
    if total == 0:
        return [1 / len(weights)] * len(weights)
    # Weights that sum to 1 keep their bits: equal ones stay FedAvg's.
    if abs(total - 1) < TOLERANCE:
        return positive
    return [weight / total for weight in positive]


def limited(weights: Sequence[float], limit: float) -> list[float]:
    """Return the weights with none above ``limit``; the excess is shared equally among the others, repeatedly.

    So differences between clients below the limit remain. If the weights cannot sum to 1 below the limit, all are
    equal.
    """
    if limit * len(weights) <= 1 + TOLERANCE:
        return [1 / len(weights)] * len(weights)
    below = dict(enumerate(weights))
    # Never empty: their mean is below the limit, as all together sum to 1 and `limit * len(weights)` is above 1.
    while max(below.values()) > limit:
        below = {client: weight for client, weight in below.items() if weight < limit}
        mass = 1 - limit * (len(weights) - len(below))
        share = (mass - sum(below.values())) / len(below)
        below = {client: weight + share for client, weight in below.items()}
    return [below.get(client, limit) for client in range(len(weights))]


def _theorem3_map(
    weights: Sequence[float], clients: Sequence[Kept], distance: float, bounds: Bounds, theta: float
) -> list[float]:
    """Return the right side of eq. 10, not normalised; a, b, c, e and f are the paper's A, B, C, E_i and F (eq. 11)."""
    eta, lipschitz = bounds.learning_rate, bounds.lipschitz
    margin = 1 - eta * lipschitz * (1 + theta)
    a = eta * (eta - 2 * lipschitz * margin)
    b = 2 * eta * lipschitz * margin
    c = eta**3 * lipschitz * (bounds.most_steps - 1) * bounds.squared_gradient
    pairs = list(zip(weights, clients, strict=True))
    steps = sum(weight * client.steps for weight, client in pairs)
    squared_weights = sum(weight**2 * client.steps for weight, client in pairs)
    squared_steps = sum(weight * client.steps**2 for weight, client in pairs)
    f = 1 + b * steps
    values: list[float] = []
    for client in clients:
        noise = eta**2 * bounds.clients * client.variance
        e = distance + noise * squared_weights + a * client.distance * steps + c * squared_steps
        values.append((b * e + f * (a * client.distance + c * client.steps)) / (2 * f * noise))
    return values
