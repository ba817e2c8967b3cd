"""PPO for the exponential of the cost: advantages of certainty equivalents.

The objective is (1/θ) log E exp(θ Σ c). The critic learns the certainty equivalent of what is to
come, by least squares towards targets whose fixed point it is, and the actor climbs exponential
advantages (:func:`cojax.agents.returns.exponential_gae`); all else is PPO (Schulman et al. 2017),
which this is to the bit at θ = 0 with its λ. The entropic risk in policy search: Nass, Belousov and
Peters 2019; temporal differences under a utility: Mihatsch and Neuneier 2002.
"""

from __future__ import annotations

from cojax.agents import on_policy, ppo, returns
from cojax.agents.algorithm import Number
from cojax.agents.ppo import PPO
from cojax.agents.settings import INF, traced
from cojax.types import Array, PyTree


class RiskPPO(PPO):
    """Hyperparameters of PPO with a price of risk.

    Attributes:
        theta: θ, in the inverse of the unit of costs; None for the problem's own, 0 without one.
        exponent_clip: θ times an error of the critic is clipped to ± this in exponents.
    """

    theta: Number | None = traced(None)
    exponent_clip: Number = traced(3.0, 0.0, INF)
    gae_lambda: Number = traced(0.8, 0.0, 1.0)


def estimate(
    h: RiskPPO, env_params: PyTree, factor: Number, *args: Array, **options: Array
) -> Array:
    """Exponential advantages of rewards that were scaled by ``factor``."""
    theta = getattr(env_params, "risk", 0.0) if h.theta is None else h.theta
    more = {"theta": theta / factor, "most": h.exponent_clip, "gae_lambda": h.gae_lambda}
    return returns.exponential_gae(*args, **options, **more)  # pyright: ignore


ALGORITHM = on_policy.make("risk_ppo", RiskPPO, ppo.loss, estimate)
