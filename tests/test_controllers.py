"""A controller of another library, python-control, is a policy, and agrees with our own LQR."""

import numpy as np
import pytest

import cojax
from cojax.evaluation import lqr_gain
from cojax.evaluation.linearised import linearisation

control = pytest.importorskip("control")


@pytest.mark.parametrize("name", ["DoubleIntegrator-v0", "ConverseArm-v0", "Manipulator-v0"])
def test_lqr_of_python_control_is_ours(name):
    """Discounting by γ is an undiscounted problem with sqrt(γ) A and sqrt(γ) B."""
    params = cojax.make(name, action_limit=None)[1]
    A, B, Q, R = linearisation(params.system)
    root = np.sqrt(float(params.system.gamma))
    K, _, _ = control.dlqr(root * A, root * B, Q, R)
    np.testing.assert_allclose(K, lqr_gain(params.system), rtol=1e-5, atol=1e-8)
    policies = {"python-control": lambda s: -K @ s, "ours": "lqr", "oracle": "oracle"}
    theirs, ours, oracle = cojax.evaluate(policies, params, 8, num_steps=50).trials[
        "suboptimality"
    ][0]
    np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5)
    assert not oracle.any()
    if name == "DoubleIntegrator-v0":  # linear: its LQR is the optimum
        np.testing.assert_allclose(theirs, 0.0, atol=1e-5)
    else:
        assert theirs.mean() > 1e-3
