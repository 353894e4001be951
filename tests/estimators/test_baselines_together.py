"""MAML, iMAML, BSVRB, SOBA and TTSA against NumPy, against the exact minimiser, and where they must fail."""

import dataclasses
import inspect
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from jax.flatten_util import ravel_pytree

import bilevelax as bx
from bilevelax.applications import quadratic as quadratic_application
from bilevelax.estimators import catalogue
from bilevelax.estimators._blocks import at_least, draw_blocks, few_of_many
from bilevelax.estimators._tables import take
from bilevelax.testing import check_estimator

SHARED = {
    "maml": bx.maml(3, 0.05),
    "first-order maml": bx.maml(2, first_order=True, batch=2),
    "imaml": bx.imaml(n=3, steps=2, cg_steps=2),
    "tight imaml": bx.imaml(n=2, steps=None, cg_steps=50),
    "soba": bx.single_loop("soba", batch=2),
    "ttsa": bx.single_loop("ttsa", inverse=bx.neumann(3)),
}
TABLES = {
    "soba table": bx.single_loop("soba", table=True),
    "ttsa table": bx.single_loop("ttsa", table=True, inverse=bx.neumann(3), batch=2),
    "bsvrb 1": bx.bsvrb(1, blocks=3, batch=2),
    "bsvrb 2": bx.bsvrb(2, blocks=4),
}


def once(estimator, key, problem, x):
    """(estimate, state) of a first call, compiled."""
    return jax.jit(estimator.estimate)(key, problem, x, estimator.init(problem, x))


# A lower level that is not quadratic, with its derivatives by hand:
# g = y'A(eta)y/2 + sum(y^4)/12 + (p.x)|y|^2/2 - y'(Bx + xi), f = |y - q - eta|^2/2 + x'Sy, y_0 = Cx + xi


class Quartic:
    d_x, d_y = 3, 2

    def __init__(self):
        rng = np.random.default_rng(3)
        self.B, self.C = rng.normal(size=(2, self.d_y, self.d_x))
        self.S = rng.normal(size=(self.d_x, self.d_y))
        self.p = np.array([0.1, 0.2, -0.1])
        self.q = rng.normal(size=self.d_y)
        flat = lambda x: jnp.concatenate([x["a"], x["b"]])

        def g(x, y, eta, xi):
            x = flat(x)
            quadratic = jnp.sum((1 + eta**2) * y**2) / 2 + jnp.sum(y**4) / 12 + (self.p @ x) * jnp.sum(y**2) / 2
            return quadratic - y @ (self.B @ x + xi)

        self.problem = bx.Problem(
            f=lambda x, y, eta, xi: jnp.sum((y - self.q - eta) ** 2) / 2 + flat(x) @ (self.S @ y),
            g=g,
            sample_context=lambda key, data: random.normal(key, (2,), float),
            sample_conditional=lambda key, xi, data: random.normal(key, (2,), float),
            init_y=lambda x, xi: self.C @ flat(x) + xi,
        )
        self.x = {"a": jnp.array([0.3, -0.2]), "b": jnp.array([0.5])}

    def slope(self, x, y, eta, xi):
        return (1 + eta**2) * y + y**3 / 3 + (self.p @ x) * y - self.B @ x - xi

    def hessian(self, x, y, eta):
        return np.diag(1 + eta**2 + y**2 + self.p @ x)

    def mixed(self, y):
        """d/dx of the slope, d_y by d_x."""
        return np.outer(y, self.p) - self.B

    def grads_f(self, x, y, eta):
        return self.S @ y, y - self.q - eta + self.S.T @ x


@pytest.fixture(scope="module")
def quartic():
    return Quartic()


def maml_draws(problem, key, m):
    key_xi, key_y, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    steps = [np.asarray(problem.conditional(random.fold_in(key_y, j), xi)) for j in range(m)]
    return np.asarray(xi), steps, np.asarray(problem.conditional(key_f, xi))


@pytest.mark.parametrize("m", [1, 4])
def test_maml_is_the_adjoint_of_its_steps(quartic, m, key):
    gamma, problem = 0.07, quartic.problem
    xi, etas, eta = maml_draws(problem, key, m)
    x = np.asarray(ravel_pytree(quartic.x)[0])
    ys = [quartic.C @ x + xi]
    for e in etas:
        ys.append(ys[-1] - gamma * quartic.slope(x, ys[-1], e, xi))
    grad, adjoint = quartic.grads_f(x, ys[-1], eta)
    first_order = grad + quartic.C.T @ adjoint
    for e, y in zip(etas[::-1], ys[-2::-1], strict=True):
        grad = grad - gamma * quartic.mixed(y).T @ adjoint
        adjoint = adjoint - gamma * quartic.hessian(x, y, e) @ adjoint
    grad = grad + quartic.C.T @ adjoint

    for estimator, expected in ((bx.maml(m, gamma), grad), (bx.maml(m, gamma, first_order=True), first_order)):
        est, _ = once(estimator, key, problem, quartic.x)
        np.testing.assert_allclose(ravel_pytree(est.grad)[0], expected, rtol=1e-12)
    assert np.abs(grad - first_order).max() > 0.01


def test_one_step_of_1_over_lam_is_the_papers_maml(softmax, key):
    """From y = x the proximal term has no gradient: the step is x - grad l / lam. Here lam = 2."""
    problem, x = softmax
    key_xi, key_y, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    train, test = problem.conditional(random.fold_in(key_y, 0), xi), problem.conditional(key_f, xi)
    centre = lambda x: {"W": x[0], "c": x[1]}
    train_loss = lambda x: problem.g(x, centre(x), train, xi)  # at y = x: the loss without its proximal term

    def loss(x):
        adapted = jax.tree.map(lambda a, b: a - b / 2, x, jax.grad(train_loss)(x))
        return problem.f(x, centre(adapted), test, xi)

    expected = jax.jit(jax.grad(loss))(x)
    est, _ = once(bx.maml(1, 0.5), key, problem, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), est.grad, expected)


# iMAML


@pytest.mark.parametrize("settings", [{"steps": None}, {"steps": 400}])
def test_imaml_is_the_exact_hypergradient_when_both_solves_are_tight(settings, key):
    oracle = quadratic_application.matrices(d_x=3, d_y=4, d_xi=2, noise=0.0, hessian_noise=0.0)
    problem = quadratic_application.problem_of(oracle)
    x = np.array([0.3, -0.7, 0.5])
    xi = np.asarray(problem.context(random.split(key, 3)[0]))
    y = oracle.y_star(x, xi)
    grad_y = y - oracle.q - oracle.R @ xi + oracle.S.T @ x
    expected = oracle.S @ y + oracle.rho * x + oracle.B.T @ np.linalg.solve(oracle.A, grad_y)
    est, _ = once(bx.imaml(n=1, cg_steps=50, **settings), key, problem, jnp.asarray(x))
    np.testing.assert_allclose(est.grad, expected, rtol=1e-10)
    rough, _ = once(bx.imaml(n=1, cg_steps=2, **settings), key, problem, jnp.asarray(x))
    assert np.abs(rough.grad - expected).max() > 1e-3  # d_y = 4 eigenvalues: two products are not enough


def test_imaml_differentiates_the_answer_on_its_samples(quartic, key):
    """g12 depends on y here, and is no multiple of I: central differences of f at the tight answer."""
    n, problem = 5, quartic.problem.averaged(5)
    key_xi, key_g, key_f = random.split(key, 3)
    xi = problem.context(key_xi)
    train, test = (np.asarray(problem.conditional(k, xi)) for k in (key_g, key_f))

    def paid(x):
        y = np.zeros(2)
        for _ in range(50):  # Newton: the mean Hessian is diagonal and >= 1
            slope = np.mean([quartic.slope(x, y, e, np.asarray(xi)) for e in train], axis=0)
            y = y - np.linalg.solve(np.mean([quartic.hessian(x, y, e) for e in train], axis=0), slope)
        return np.mean([np.sum((y - quartic.q - e) ** 2) / 2 for e in test]) + x @ quartic.S @ y

    x = np.asarray(ravel_pytree(quartic.x)[0])
    expected = [(paid(x + h) - paid(x - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
    est, _ = once(bx.imaml(n=n, steps=None, cg_steps=20), key, quartic.problem, quartic.x)
    np.testing.assert_allclose(ravel_pytree(est.grad)[0], expected, rtol=1e-7)


# Many small quadratics: g_i = y'A_i y/2 - y'(B_i x + b_i + eta), f_i = |y - q_i - eta|^2/2 + |x|^2/4, E eta = 0.
# y_i* = J_i x + k_i with J_i = A_i^-1 B_i, k_i = A_i^-1 b_i, so F is quadratic and x* solves a linear system.

M = 6


@pytest.fixture(scope="module")
def multi_block():
    """(problem with noise, the same without, x1, x*)."""
    rng = np.random.default_rng(0)
    Q = np.stack([np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(M)])
    A = Q @ (rng.uniform(1, 2, size=(M, 3, 1)) * Q.mT)
    B, b = rng.normal(size=(M, 3, 2)), rng.normal(size=(M, 3))
    J, k = np.linalg.solve(A, B), np.linalg.solve(A, b[..., None])[..., 0]
    q = J @ np.array([2.0, -1.0]) + rng.normal(size=(M, 3))
    x_star = np.linalg.solve(np.mean(J.mT @ J, 0) + np.eye(2) / 2, np.mean((J.mT @ (q - k)[..., None])[..., 0], 0))
    noise = 0.5 * rng.normal(size=(M, 4, 3))
    noise -= noise.mean(1, keepdims=True)
    flat = lambda y: jnp.concatenate([y["u"], y["w"]])

    def make(outcomes):
        return bx.from_arrays(
            f=lambda x, y, eta, xi: jnp.sum((flat(y) - xi["q"] - eta) ** 2) / 2 + jnp.sum(x["p"] ** 2) / 4,
            g=lambda x, y, eta, xi: flat(y) @ xi["A"] @ flat(y) / 2 - flat(y) @ (xi["B"] @ x["p"] + xi["b"] + eta),
            contexts={"A": A, "B": B, "b": b, "q": q},
            outcomes=outcomes,
            init_y=lambda x, xi: {"u": jnp.zeros(2), "w": jnp.zeros(1)},
            mu_g=1.0,
            L_g1=2.0,
        )

    return make(noise), make(0 * noise), {"p": jnp.zeros(2)}, x_star


def final(problem, estimator, optimizer, x1, T):
    result = bx.minimize(problem, estimator, optimizer, x1, key=random.key(1), T=T, every=T, progress=False)
    return np.asarray(ravel_pytree(result.x)[0])


def decaying(scale, shift):
    return optax.sgd(lambda t: scale / (t + shift).astype(float))


@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_without_randomness_finds_the_minimiser_to_rounding(version, multi_block):
    _, noiseless, x1, x_star = multi_block
    x = final(noiseless, bx.bsvrb(version, blocks=M), optax.sgd(0.1), x1, 600)
    np.testing.assert_allclose(x, x_star, rtol=0, atol=1e-12)


METHODS = {
    "bsvrb 1": bx.bsvrb(1, blocks=2),
    "bsvrb 2": bx.bsvrb(2, blocks=2),
    "soba table": bx.single_loop("soba", table=True, beta=0.2),
    "ttsa table": bx.single_loop("ttsa", table=True, beta=0.2, inverse=bx.dense(1)),
    "rt_mlmc": bx.minibatch(bx.rt_mlmc(8, lower=bx.epoch_sgd(beta0=2.0), inverse=bx.dense(1)), 4, mode="loop"),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_with_a_table_and_rt_mlmc_meet_at_the_minimiser(name, multi_block):
    """All meet at x* = (1.44, -1.02), started at 0, with a third of the blocks or one of them per step.

    Over 8 keys no mean was off by more than two standard errors, and no standard deviation above 0.015.
    """
    noisy, _, x1, x_star = multi_block
    x = final(noisy, METHODS[name], decaying(2.0, 40), x1, 8000)
    np.testing.assert_allclose(x, x_star, rtol=0, atol=0.05)


def by_hand(version, problem, key, T, n, a, b, tau, alpha):
    """BSVRB on the noiseless quadratics, line by line: the iterates x^2..x^{T+1}."""
    A, B, shift, q = (np.asarray(problem.data.contexts[name]) for name in ("A", "B", "b", "q"))
    c = (M - n) / (n * (1 - a)) + (1 - a)
    x = x_prev = w = np.zeros(2)
    y = y_prev = s = v = v_prev = u = np.zeros((M, 3))
    H, seen, xs = np.zeros((M, 3, 3)), np.zeros(M, bool), []
    slope = lambda i, x, y: A[i] @ y[i] - B[i] @ x - shift[i]
    adjoint = lambda i, y, v: A[i] @ v[i] - (y[i] - q[i])
    G = lambda rows, x, r: x / 2 + np.mean([B[i].T @ each for i, each in zip(rows, r, strict=True)], 0)
    for t in range(T):
        rows = np.asarray(draw_blocks(random.fold_in(key, t), problem, M, n).rows)
        track = lambda i, old, now, before: (1 - a) * old + a * now + c * (now - before) if seen[i] else now
        s, u, H, H_prev = s.copy(), u.copy(), H.copy(), H.copy()
        for i in rows:
            s[i] = track(i, s[i], slope(i, x, y), slope(i, x_prev, y_prev))
            u[i] = track(i, u[i], adjoint(i, y, v), adjoint(i, y_prev, v_prev))
            H[i] = track(i, H[i], A[i], A[i])
            H_prev[i] = H_prev[i] if seen[i] else H[i]
        solve = lambda H, y: [np.linalg.solve(H[i], y[i] - q[i]) for i in rows]  # noqa: B023 (called at once)
        now, then = (solve(H, y), solve(H_prev, y_prev)) if version == 1 else (v[rows], v_prev[rows])
        w = (0 if t == 0 else 1 - b) * (w - G(rows, x_prev, then)) + G(rows, x, now)
        seen[rows] = True
        x, x_prev, y, y_prev, v, v_prev = x - alpha * w, x, y - tau * s, y, v - tau * u, v
        xs.append(x)
    return np.array(xs)


@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_is_its_update_rule(version, multi_block, key):
    _, problem, x, _ = multi_block
    T, n, settings = 12, 2, {"a": 0.3, "b": 0.4, "tau": 0.1}
    estimator = bx.bsvrb(version, blocks=n, tau_v=0.1, **settings)
    step, state, xs = jax.jit(estimator.estimate), estimator.init(problem, x), []
    for t in range(T):
        est, state = step(random.fold_in(key, t), problem, x, state)
        x = {"p": x["p"] - 0.1 * est.grad["p"]}
        xs.append(x["p"])
    np.testing.assert_allclose(xs, by_hand(version, problem, key, T, n, alpha=0.1, **settings), rtol=1e-9)


def test_few_blocks_of_many_are_different_and_every_set_is_as_likely(key):
    """Floyd's algorithm: all 15 pairs of 6 come up, none more often than the others (5 standard errors)."""
    draws = 6000
    keys = jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(draws))
    pairs = np.sort(np.asarray(jax.vmap(lambda key: few_of_many(key, 6, 2))(keys)), axis=1)
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    assert np.all(pairs[:, 0] < pairs[:, 1]) and len(counts) == 15
    assert np.abs(counts - draws / 15).max() < 5 * np.sqrt(draws / 15)


def test_bsvrb_touches_the_trackers_of_sampled_blocks_only(multi_block, key):
    problem, _, x, _ = multi_block
    _, state = once(bx.bsvrb(2, blocks=2), key, problem, x)
    rows = set(np.asarray(draw_blocks(key, problem, M, 2).rows).tolist())
    assert len(rows) == 2
    assert set(np.flatnonzero(state.seen).tolist()) == rows
    for tracker_of in (state.s, state.memory.u):
        assert set(np.flatnonzero(np.abs(tracker_of["u"]).sum(1)).tolist()) == rows


def test_eigenvalues_are_raised_to_mu():
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    H = Q @ np.diag([-1.0, 0.5, 3.0]) @ Q.T
    np.testing.assert_allclose(at_least(jnp.asarray(H)[None], 1.0)[0], Q @ np.diag([1.0, 1.0, 3.0]) @ Q.T, atol=1e-12)


def test_adjoints_are_bounded_by_R(multi_block, key):
    problem, _, x, _ = multi_block
    _, state = once(bx.bsvrb(2, blocks=M, R=0.1), key, problem, x)
    norms = [np.linalg.norm(ravel_pytree(take(state.memory.v, i))[0]) for i in range(M)]
    np.testing.assert_allclose(norms, 0.1, rtol=1e-12)  # all would be longer


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


# Contract, costs, refusals


def counted(problem, calls):
    """The problem, counting what is really evaluated, at run time."""

    def note(name, tag):
        jax.debug.callback(lambda _: calls.update([name]), tag)

    def loss(name, function):
        def noted(x, y, eta, xi):
            note(name, jax.lax.stop_gradient(ravel_pytree(eta)[0]))
            return function(x, y, eta, xi)

        return noted

    def sample_context(key, data):
        note("xi", random.key_data(key))
        return problem.sample_context(key, data)

    def sample_conditional(key, xi, data):
        note("eta", random.key_data(key))
        return problem.sample_conditional(key, xi, data)

    return dataclasses.replace(
        problem,
        f=loss("f", problem.f),
        g=loss("g", problem.g),
        sample_context=sample_context,
        sample_conditional=sample_conditional,
    )


IN_NUMBERS = {  # xi, eta, grad_f, grad_g, hess_g, cross_g of those that draw no number of products; d_y = 3
    "maml": (1, 4, 1, 3, 3, 3),
    "first-order maml": (1, 6, 2, 4, 0, 0),
    "imaml": (1, 6, 3, 6, 6, 3),
    "soba": (8, 8, 2, 2, 2, 2),
    "soba table": (1, 4, 1, 1, 1, 1),
    "bsvrb 1": (3, 18, 12, 12, 12 * 3, 12),
    "bsvrb 2": (4, 12, 8, 8, 8, 8),
}


@pytest.mark.parametrize("name", [*SHARED, *TABLES])
def test_costs_are_what_runs(name, multi_block, key):
    """Each derivative evaluates its loss once: f runs grad_f times, g runs grad_g + hess_g + cross_g times."""
    problem, _, x, _ = multi_block
    estimator, calls = {**SHARED, **TABLES}[name], Counter()
    est, _ = jax.block_until_ready(once(estimator, key, counted(problem, calls), x))
    jax.effects_barrier()
    cost = {field: int(count) for field, count in est.cost.asdict().items()}
    assert IN_NUMBERS.get(name, tuple(cost.values())) == tuple(cost.values())
    assert calls["eta"] == cost["eta"]
    assert calls["f"] == cost["grad_f"]
    unrolled = name in ("maml", "first-order maml")  # the reverse pass has no calls of its own
    products = cost["hess_g"] // (3 if name == "bsvrb 1" else 1)  # d_y columns of a Hessian share one run
    assert calls["g"] == cost["grad_g"] + (0 if unrolled else products + cost["cross_g"])
    if name not in TABLES:  # tables take their contexts by number
        assert calls["xi"] == cost["xi"]


@pytest.mark.parametrize("name", ["maml", "tight imaml"])
def test_contract_on_pytrees(name, softmax, key):
    problem, x = softmax
    check_estimator(SHARED[name], problem, x, key=key)


@pytest.mark.parametrize("name", ["ttsa table", "bsvrb 1"])
def test_contract_with_tables(name, multi_block, key):
    problem, _, x, _ = multi_block
    check_estimator(TABLES[name], problem, x, key=key)


def test_they_are_found_and_have_defaults():
    for name in ("maml", "imaml", "bsvrb", "single_loop"):
        factory = catalogue.load(name)
        assert factory is getattr(bx, name)
        assert all(p.default is not p.empty for p in inspect.signature(factory).parameters.values())
        assert factory().init is not None
    assert not any(name.startswith("_") for name in catalogue.names())


def test_refusals(quadratic, multi_block, x, key):
    for estimator, owner in ((bx.bsvrb(), "bsvrb"), (bx.single_loop(table=True), r"single_loop\(table=True\)")):
        with pytest.raises(ValueError, match=f"{owner} keeps a row for each context, so it needs finitely many"):
            estimator.init(quadratic, x)
    problem, _, x1, _ = multi_block
    with pytest.raises(
        ValueError, match=r"d_y <= `largest` = 2. Got d_y = 3 and 6 contexts: 4.32e-07 GB. Use version=2"
    ):
        bx.bsvrb(1, largest=2).init(problem, x1)
    unknown = dataclasses.replace(problem, mu_g=None, L_g1=None)
    with pytest.raises(ValueError, match="`mu` of bsvrb must be given"):
        once(bx.bsvrb(1, tau=0.1), key, unknown, x1)
    for estimator, name in ((bx.bsvrb(), "`tau` of bsvrb"), (bx.single_loop(), "`beta` of single_loop")):
        with pytest.raises(ValueError, match=f"{name} must be given where the problem does not know L_g1"):
            once(estimator, key, unknown, x1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.maml(m=0), "`m` of maml must be an integer >= 1. Got 0"),
        (lambda: bx.maml(gamma=-1.0), "`gamma` of maml must be a positive number. Got -1.0"),
        (lambda: bx.imaml(n=0), "`n` of imaml"),
        (lambda: bx.imaml(steps=0), "`steps` of imaml"),
        (lambda: bx.bsvrb(3), "`version` of bsvrb must be one of 1, 2. Got 3"),
        (lambda: bx.bsvrb(a=1.0), "`a` of bsvrb must lie between 0 and 1. Got 1.0"),
        (lambda: bx.bsvrb(b=0.0), r"`b` of bsvrb must lie in \(0, 1\] or be an optax schedule. Got 0.0"),
        (lambda: bx.bsvrb(tau=0.0), "`tau` of bsvrb must be a positive number"),
        (lambda: bx.single_loop("alset"), "`method` of single_loop must be one of 'soba', 'ttsa'. Got 'alset'"),
        (lambda: bx.single_loop(beta=-0.1), "`beta` of single_loop must be a positive number"),
    ],
)
def test_bad_arguments_get_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
