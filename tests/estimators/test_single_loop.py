"""SOBA and TTSA: right with a table, and where they must fail without."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import decaying, final

import bilevelax as bx

# y*(x, xi) = x xi: g = (y - x xi - eta)^2 / 2 and f = (y - 1)^2 / 2, E eta = 0. With m1 = E xi and m2 = E xi^2:
# F(x) = E (x xi - 1)^2 / 2 is least at x* = m1 / m2. A shared y tends to x m1, and its adjoint v to E (y - 1) =
# x m1 - 1, for the Hessian is 1. As g12 = -xi, the direction of x tends to m1 v = m1 (x m1 - 1), whose only zero is
# x = 1 / m1: the minimiser of (x m1 - 1)^2 / 2, and not x* unless xi is constant. Here xi is 0 or 2, so m1 = 1 and
# m2 = 2: right is 1/2, wrong is 1.


@pytest.fixture(scope="module")
def toy():
    return bx.from_arrays(
        f=lambda x, y, eta, xi: (y - 1) ** 2 / 2,
        g=lambda x, y, eta, xi: (y - x * xi - eta) ** 2 / 2,
        contexts=np.array([0.0, 2.0]),
        outcomes=np.array([[-0.5, 0.5], [-0.5, 0.5]]),
        init_y=lambda x, xi: jnp.zeros_like(x),
        mu_g=1.0,
        L_g1=1.0,
    )


TOY = {
    "soba": (bx.single_loop("soba", beta=0.2), 1.0),
    "ttsa": (bx.single_loop("ttsa", beta=0.2, inverse=bx.dense(1)), 1.0),
    "soba table": (bx.single_loop("soba", table=True, beta=0.2), 0.5),
    "ttsa table": (bx.single_loop("ttsa", table=True, beta=0.2, inverse=bx.dense(1)), 0.5),
    "rt_mlmc": (bx.rt_mlmc(8, lower=bx.epoch_sgd(beta0=2.0), inverse=bx.dense(1)), 0.5),
}


@pytest.mark.parametrize("name", TOY)
def test_a_shared_y_goes_to_the_wrong_point(name, toy):
    estimator, limit = TOY[name]
    x = final(toy, estimator, decaying(2.0, 20), jnp.zeros(()), 20_000)
    np.testing.assert_allclose(x, limit, rtol=0, atol=0.05)
