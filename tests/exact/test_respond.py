"""`respond` and `evaluate` against closed forms."""

import numpy as np

from bilevelax.exact.evaluate import evaluate
from bilevelax.exact.respond import respond


def test_respond_and_evaluate_against_closed_forms(matrices, quadratic, x, key):
    xi = quadratic.context(key)
    y = respond(quadratic, x, xi, key=key, n=20_000)
    # noise 0.5 and a relative Hessian noise of 0.3 leave about 0.5 / sqrt(20,000) = 0.004 a coordinate
    np.testing.assert_allclose(y, matrices.y_star(np.asarray(x), np.asarray(xi)), atol=0.03)
    found = evaluate(quadratic, x, key=key, n=3000, samples=64)
    assert abs(found.mean - matrices.F(np.asarray(x))) < 5 * found.stderr
    assert 5 * found.stderr < 0.2 * found.mean and found.low < found.mean < found.high
