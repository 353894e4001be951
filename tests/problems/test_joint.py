"""Problems of pairs: rows of a table and no conditional sampler; answers in a basis."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from scipy.special import jv

import bilevelax as bx
from bilevelax.diagnostics.basis import basis_rows
from bilevelax.problems.bases import LEAST_EIGENVALUE, as_basis, scaled
from bilevelax.testing import assert_slope


def f(x, y, eta, xi):
    return jnp.sum((y - x["b"] * xi) ** 2) / 2 + jnp.sum(x["a"] ** 2) / 10


def g(x, y, eta, xi):
    return jnp.sum((y - x["a"] * eta) ** 2) / 2 + jnp.sum((y - xi) ** 2)


X0 = {"a": jnp.array([0.7, -0.4]), "b": jnp.asarray(0.3)}
START = {"init_y": lambda x, xi: jnp.zeros(2), "mu_g": 3.0, "L_g1": 3.0}
EXACTLY = jax.jit(bx.saa("all").estimate)


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    xi = rng.uniform(-1, 1, (n, 2))
    return xi, 2 * xi + 1 + 0.3 * rng.normal(size=(n, 2))


@pytest.fixture(scope="module")
def pairs():
    return bx.from_joint(f, g, table(), **START)


def flat(tree):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])


def exact(problem, x=X0):
    """grad F of a problem with one context and finitely many outcomes."""
    return flat(EXACTLY(random.key(0), problem, x, ())[0].grad)


def by_hand(x, xi, eta, phi):
    """Value and gradient of the reduced problem by least squares in NumPy, through jax.grad of the normal equations."""

    def value(x):
        target = (x["a"][None] * eta + 2 * xi) / 3  # argmin of g in y, row by row
        W = jnp.linalg.solve(phi.T @ phi, phi.T @ target)
        return jnp.mean(jax.vmap(lambda row, e, z: f(x, row, e, z))(phi @ W, eta, xi))

    return flat(jax.grad(value)(x))


BASES = {
    "chebyshev": bx.chebyshev(2),
    "fourier": bx.fourier(2),
    "splines": bx.splines(4),
    "random_features": bx.random_features(9, key=random.key(3)),
    "a function": lambda z: jnp.concatenate([jnp.ones(1), z, z**2]),
}


@pytest.mark.parametrize("name", BASES)
def test_the_gradient_is_that_of_least_squares(name, pairs):
    """An identity: for a quadratic g the lower level in W is a regression, whatever the basis and its scaling."""
    xi, eta = map(jnp.asarray, table())
    features = as_basis(BASES[name]).fit(np.asarray(xi))
    phi = np.asarray(jax.vmap(features)(xi))
    if name == "random_features":  # nearly dependent functions: what they span, kept as `scaled` keeps it
        phi = scaled(BASES[name], np.asarray(xi))[1]
    found = exact(bx.reduced(pairs, BASES[name]))
    np.testing.assert_allclose(found, by_hand(X0, xi, eta, jnp.asarray(phi)), rtol=1e-8, atol=1e-10)


def test_answers_in_the_span_are_the_contextual_ones():
    """Conditional means that are affine in xi: the reduced problem has the gradient of the contextual one, exactly."""
    rng = np.random.default_rng(1)
    contexts = rng.uniform(-1, 1, (7, 2))
    noise = rng.normal(size=(7, 5, 2))
    outcomes = 2 * contexts[:, None] + 1 + noise - noise.mean(axis=1, keepdims=True)
    contextual = bx.from_arrays(f, g, contexts, outcomes, **START)
    rows = np.repeat(contexts, 5, axis=0), outcomes.reshape(-1, 2)
    reduced = bx.reduced(bx.from_joint(f, g, rows, **START), bx.chebyshev(1))
    every = bx.minibatch(bx.saa("all"), 7, contexts="spread")
    wanted = flat(jax.jit(every.estimate)(random.key(0), contextual, X0, ())[0].grad)
    np.testing.assert_allclose(exact(reduced), wanted, rtol=1e-8)
    W = bx.respond(reduced, X0, jnp.int32(0), key=random.key(0))
    ys = bx.answers(reduced, X0, W, contexts)
    xis = [contextual.nth_context(i) for i in range(7)]
    np.testing.assert_allclose(ys, [bx.respond(contextual, X0, xi, key=random.key(0)) for xi in xis], rtol=1e-6)
    without_slope = bx.reduced(bx.from_joint(f, g, rows, **START), lambda z: jnp.ones(1))
    assert np.linalg.norm(exact(without_slope) - wanted) > 0.1 * np.linalg.norm(wanted)  # control: a basis too poor


def test_the_error_falls_with_the_degree():
    """y* = sin(3 xi): the gradient's error falls geometrically in the degree of an analytic answer."""
    z = np.linspace(-1, 1, 400)[:, None]
    rows = z, np.sin(3 * z)
    losses = (lambda x, y, eta, xi: jnp.sum((y - x * xi) ** 4)), (lambda x, y, eta, xi: jnp.sum((y - x * eta) ** 2))
    problem = bx.from_joint(*losses, rows, init_y=lambda x, xi: jnp.zeros(1))
    x = jnp.asarray(1.0)
    y = np.sin(3 * z)
    wanted = np.mean(4 * (y - z) ** 3 * (y - z))  # dy*/dx = sin 3 xi, and f moves with xi against it
    degrees = [1, 3, 5, 7]
    errors = [abs(exact(bx.reduced(problem, bx.chebyshev(d)), x)[0] - wanted) for d in degrees]
    left_out = jv(np.add(degrees, 2), 3)  # the first Chebyshev coefficient of sin 3 xi that is not in the basis
    assert_slope(degrees, errors, np.polyfit(degrees, np.log2(left_out), 1)[0], tol=0.15)


def test_contexts_to_scale_on_need_not_be_the_rows(pairs):
    """The span is the same, so the gradient is: functions are those of the rows, whatever they were scaled on."""
    like = np.random.default_rng(9).uniform(-2, 2, (30, 2))  # of a wider range, which nothing is cut at
    found, wanted = (exact(bx.reduced(pairs, bx.chebyshev(1), **kw)) for kw in ({"like": like}, {}))
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def test_monomials_are_refused_by_the_eigenvalue(pairs):
    few, many = (lambda z: z[0] ** jnp.arange(3.0)), (lambda z: z[0] ** jnp.arange(20.0))
    bx.reduced(pairs, few)
    with pytest.raises(ValueError, match=r"must determine W: the smallest eigenvalue of E Phi Phi\^T .* orthogonal"):
        bx.reduced(pairs, many)
    with pytest.raises(ValueError, match=r"Got 0.0e\+00 for 3 functions"):
        bx.reduced(pairs, lambda z: jnp.stack([jnp.ones(()), z[0], 2 * z[0] - 1]))


@pytest.mark.parametrize("name", BASES)
def test_functions_are_uncorrelated_on_the_data(name):
    Z = table()[0]
    features, phi = scaled(as_basis(BASES[name]), Z)
    np.testing.assert_allclose(phi.T @ phi / len(Z), np.eye(phi.shape[1]), atol=1e-8 / LEAST_EIGENVALUE**0.5)
    np.testing.assert_allclose(jax.vmap(features)(jnp.asarray(Z)), phi, atol=1e-9)


def test_a_reduced_problem_is_a_problem(pairs, key):
    problem = bx.reduced(pairs, bx.chebyshev(1))
    run = bx.minimize(problem, bx.saa("all"), optax.sgd(0.3), X0, key=key, T=100, every=100)
    assert np.linalg.norm(exact(problem, run.x)) < 1e-3 * np.linalg.norm(exact(problem))
    assert bx.certify(problem, run.x, key=key).n >= 1


def test_samplers_give_pairs_too(key):
    """A problem with both samplers: pairs are drawn from it; the gradient is the contextual one."""
    problem = bx.Problem(
        f=f,
        g=g,
        sample_context=lambda key, data: random.uniform(key, (2,), float, -1.0, 1.0),
        sample_conditional=lambda key, xi, data: 2 * xi + 1 + 0.3 * random.normal(key, (2,), float),
        **START,
    )
    with pytest.raises(ValueError, match="`like` of reduced must be contexts"):
        bx.reduced(problem, bx.chebyshev(1))
    like = jax.vmap(problem.context)(random.split(key, 500))
    reduced = bx.reduced(problem, bx.chebyshev(1), like=like)
    n = 20_000
    found = flat(jax.jit(bx.saa(n).estimate)(key, reduced, X0, ())[0].grad)
    # exact: y* = (a (2 xi + 1) + 2 xi) / 3, E xi = 0, E xi^2 = 1/3
    a, b = np.asarray(X0["a"]), float(X0["b"])
    slope = (2 * a + 2) / 3 - b  # of y* - b xi; the constant is a / 3
    wanted = np.concatenate([slope * 2 / 9 + a / 9 + a / 5, [-(slope / 3).sum()]])
    np.testing.assert_allclose(found, wanted, atol=0.02)  # 5 standard errors of 20,000 pairs are 0.013


def verdicts(problem, x, key):
    return {row.name: row.ok for row in basis_rows(problem, x, key, 0.05, 1.0)}


def test_check_tells_a_poor_basis_from_a_rich_one(key):
    """eta = sin(4 xi) + noise: a line leaves most of it, degree 6 next to nothing."""
    rng = np.random.default_rng(2)
    z = rng.uniform(-1, 1, (400, 1))
    losses = (lambda x, y, eta, xi: jnp.sum((y - xi) ** 2)), (lambda x, y, eta, xi: jnp.sum((y - x * eta) ** 2))
    problem = bx.from_joint(
        *losses, (z, np.sin(4 * z) + 0.1 * rng.normal(size=z.shape)), init_y=lambda x, xi: jnp.zeros(1)
    )
    x = jnp.asarray(1.0)
    held_out, gradient = "basis: g on held-out rows", "basis: gradient with twice the functions"
    poor, rich = (verdicts(bx.reduced(problem, bx.chebyshev(d)), x, key) for d in (1, 6))
    assert poor[held_out] is False and poor[gradient] is False
    assert rich[held_out] is True and rich[gradient] is True
    neighbours = "basis: g against neighbours' answers"
    assert poor[neighbours] is False and rich[neighbours] is True
    few = bx.reduced(bx.from_joint(*losses, (z[:8], z[:8]), init_y=lambda x, xi: jnp.zeros(1)), bx.chebyshev(4))
    assert verdicts(few, x, key)["basis: twice the functions"] is None
    assert basis_rows(problem, x, key, 0.05, 1.0) == []


WAYS_ON = r"pairs \(xi, eta\) only .* reduced\(problem, basis\), .* amortised\(\), or sklearn.with_conditional"


@pytest.mark.parametrize("estimator", [bx.saa(4), bx.rt_mlmc(3), bx.antithetic_mlmc(4)])
def test_what_needs_a_conditional_refuses_pairs(estimator, pairs, key):
    with pytest.raises(ValueError, match=WAYS_ON):
        bx.minimize(pairs, estimator, optax.sgd(0.1), X0, key=key, T=2, every=2)


@pytest.mark.parametrize("ask", [bx.check, bx.certify, bx.tune, bx.evaluate, bx.constants])
def test_diagnostics_refuse_pairs(ask, pairs, key):
    with pytest.raises(ValueError, match=WAYS_ON):
        ask(pairs, X0, key=key)


def test_tables_and_their_columns():
    pandas = pytest.importorskip("pandas")
    xi, eta = table(20)
    frame = pandas.DataFrame({"u": xi[:, 0], "v": xi[:, 1], "a": eta[:, 0], "b": eta[:, 1], "name": "x"})
    by_name = bx.from_joint(f, g, frame, context=["u", "v"], outcome=["a", "b"], **START)
    by_array = bx.from_joint(f, g, (xi, eta), **START)
    np.testing.assert_array_equal(
        exact(bx.reduced(by_name, bx.chebyshev(1))), exact(bx.reduced(by_array, bx.chebyshev(1)))
    )
    one = bx.from_joint(f, g, frame, context="u", outcome="a", **START)
    assert one.nth_context(3).value.shape == ()
    numbered = bx.from_joint(f, g, frame.assign(day=range(20)), context="day", outcome="a", **START)
    assert bx.reduced(numbered, bx.chebyshev(2)).data.phi.shape == (20, 3)  # whole numbers are sizes here
    with pytest.raises(ValueError, match=r"must name columns of the table, .* Got 'w'"):
        bx.from_joint(f, g, frame, context=["u", "w"], outcome="a", **START)
    with pytest.raises(ValueError, match="must hold numbers"):
        bx.from_joint(f, g, frame, context="name", outcome="a", **START)
    with pytest.raises(ValueError, match="`context` and `outcome` of from_joint must name columns"):
        bx.from_joint(f, g, frame, **START)


def test_a_store_of_clients_is_a_table(tmp_path):
    from bilevelax.datasets import ClientStore, ClientWriter

    xi, eta = table(20)
    columns = {"u": xi[:, 0].astype(np.float32), "a": eta[:, 0].astype(np.float32)}
    with ClientWriter(tmp_path / "store") as writer:
        for rows in (slice(0, 3), slice(3, 12), slice(12, 20)):
            writer.add({name: column[rows] for name, column in columns.items()})
    store = ClientStore(tmp_path / "store")
    problem = bx.from_joint(f, g, store, context="u", outcome="a", **START)
    assert problem.n_contexts == 20
    np.testing.assert_array_equal(problem.data.contexts, columns["u"])
    np.testing.assert_array_equal(problem.data.outcomes, columns["a"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((np.zeros((3, 2)), np.zeros((4, 2))), "one entry for each row"),
        ((np.zeros((0, 2)), np.zeros((0, 2))), "one entry for each row"),
        (
            (np.zeros((3, 2)), np.array([[0, 0], [np.nan, 0], [0, 0]])),
            r"finite. Got \[nan +0.\] in the outcomes of row 1",
        ),
        (np.zeros((3, 2)), r"must be a pair \(contexts, outcomes\)"),
    ],
)
def test_bad_rows_get_a_sentence(rows, message):
    with pytest.raises(ValueError, match=message):
        bx.from_joint(f, g, rows, **START)


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        (lambda: bx.chebyshev(0), "`degree` of chebyshev must be an integer >= 1"),
        (lambda: bx.splines(2), "`knots` of splines must be an integer >= 3"),
        (lambda: bx.random_features(0, key=random.key(0)), "`n` of random_features"),
        (lambda: bx.chebyshev(9).fit(np.zeros((5, 30))), "more than 4096 functions of 30 coordinates"),
        (lambda: as_basis(3), "`basis` of reduced must be one of chebyshev"),
    ],
)
def test_bad_bases_get_a_sentence(basis, message):
    with pytest.raises(ValueError, match=message):
        basis()


def with_samplers(spread):
    """y* = x sin(4 xi): pairs are drawn, and exact responses known."""
    return bx.Problem(
        f=lambda x, y, eta, xi: (y - xi) ** 2,
        g=lambda x, y, eta, xi: (y - x * eta) ** 2,
        sample_context=lambda key, data: random.uniform(key, (), float, -1.0, 1.0),
        sample_conditional=lambda key, xi, data: jnp.sin(4 * xi) + spread * random.normal(key, (), float),
        init_y=lambda x, xi: jnp.zeros(()),
    )


def test_check_compares_a_basis_with_exact_responses_where_a_conditional_exists(key):
    problem, x = with_samplers(0.1), jnp.asarray(1.0)
    like = np.linspace(-1, 1, 500)
    poor, rich = (verdicts(bx.reduced(problem, bx.chebyshev(d), like=like), x, key) for d in (1, 6))
    exact, gradient = "basis: g against exact responses", "basis: gradient with twice the functions"
    assert poor[exact] is False and poor[gradient] is False
    assert rich[exact] is True and rich[gradient] is True


def test_neighbours_see_what_no_richer_basis_of_its_kind_does(key):
    """eta jumps along the diagonal: sums over coordinates stay wrong, with twice the functions too."""
    rng = np.random.default_rng(5)
    z = rng.uniform(-1, 1, (800, 2))
    losses = (lambda x, y, eta, xi: (y - 1) ** 2), (lambda x, y, eta, xi: (y - x * eta) ** 2)
    eta = np.sign(z[:, 0] * z[:, 1]) + 0.1 * rng.normal(size=800)
    problem = bx.reduced(bx.from_joint(*losses, (z, eta), init_y=lambda x, xi: jnp.zeros(())), bx.splines(5))
    found = verdicts(problem, jnp.asarray(1.0), key)
    assert found["basis: g against neighbours' answers"] is False
    assert found["basis: g on held-out rows"] is not False
