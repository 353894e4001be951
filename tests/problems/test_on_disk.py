"""Rows that stay on disk: the draws, gradients and runs of rows in memory, in bounded memory."""

import functools
import itertools
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax.datasets import ClientStore
from bilevelax.problems import joint, on_disk
from bilevelax.problems.joint import draw_pair, in_memory

X0 = jnp.array([0.8, 0.3])
LOSSES = {
    "f": lambda x, y, eta, xi: (y - x[1] * xi["u"]) ** 2 / 2 + x[0] ** 2 / 2,
    "g": lambda x, y, eta, xi: (y - x[0] * eta) ** 2 / 2 + y**4 / 40,  # no regression: Newton takes steps
    "init_y": lambda x, xi: jnp.zeros(()),
    "mu_g": 1.0,
    "L_g1": 9.0,
}
N = 50


def table(n=N):
    rng = np.random.default_rng(0)
    u, v = rng.uniform(-1, 1, (2, n))
    return {"u": u, "v": v}, 2 * u - 1 + v**2 + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_disk, "ROWS_A_READ", 16)  # four blocks, the last one not full
        yield


@pytest.fixture(scope="module")
def both():
    """The same rows in memory and streamed, and both reduced to six functions."""
    pairs = [bx.from_joint(rows=table(), stream=stream, **LOSSES) for stream in (False, True)]
    return pairs, [bx.reduced(each, bx.chebyshev(2)) for each in pairs]


@functools.cache
def compiled(estimator):
    return jax.jit(lambda key, problem: estimator.estimate(key, problem, X0, ())[0].grad)


def gradients(estimator, problems, key):
    return [np.asarray(compiled(estimator)(key, each)) for each in problems]


def test_draws_are_those_of_memory(both, key):
    """The same rows for the same keys, bit for bit, whole numbers and trees among them."""
    keys = random.split(key, 64)
    drawn = [jax.jit(jax.vmap(lambda key, each=each: draw_pair(key, each)))(keys) for each in both[0]]
    jax.tree.map(np.testing.assert_array_equal, *drawn)
    assert len(np.unique(drawn[0].xi.row)) > 20
    rows = [np.arange(12).reshape(4, 3), np.arange(4)]
    made = [bx.from_joint(lambda *a: 0.0, lambda *a: 0.0, tuple(rows), init_y=lambda *a: 0.0, stream=s) for s in (0, 1)]
    jax.tree.map(np.testing.assert_array_equal, *(draw_pair(key, each) for each in made))


STOCHASTIC = {"saa": bx.saa(8), "rt_mlmc": bx.minibatch(bx.rt_mlmc(2), 2), "antithetic": bx.antithetic_mlmc(8)}


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_steps_are_those_of_memory(name, both, key):
    found, wanted = gradients(STOCHASTIC[name], both[1][::-1], key)
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    other = gradients(STOCHASTIC[name], both[1][1:], random.key(7))[0]
    assert np.linalg.norm(other - wanted) > 1e-3 * np.linalg.norm(wanted)  # control: draws matter


def test_the_exact_machinery_adds_up_over_blocks(both, key):
    memory, disk = both[1]
    assert disk.support is None and disk.blocks(0, disk.data).n == 4
    found, wanted = gradients(bx.saa("all"), (disk, memory), key)
    np.testing.assert_allclose(found, wanted, rtol=1e-8)
    W = [bx.respond(each, X0, each.nth_context(0), key=key) for each in (disk, memory)]
    # the functions are whitened by another order of sums: answers are compared, not W
    contexts = table(7)[0]
    answers = [bx.answers(problem, X0, w, contexts) for problem, w in zip((disk, memory), W, strict=True)]
    np.testing.assert_allclose(*answers, rtol=1e-8)
    F = [bx.evaluate(each, X0, key=key) for each in (disk, memory)]
    assert F[0].stderr == 0 and F[0].mean == pytest.approx(F[1].mean, rel=1e-10)
    certificates = [bx.certify(each, X0, key=key) for each in (disk, memory)]
    assert certificates[0].high == pytest.approx(certificates[1].high, rel=1e-8)
    assert "exact" in str(certificates[0]) and "reduced to 6 functions" in str(certificates[0])


def test_a_basis_is_scaled_on_all_rows(both):
    """Its Gram matrix is that of every block, its range that of every row, also of those that are not in the sample."""
    memory, disk = (each.data.features for each in both[1])
    Z = np.stack([*table()[0].values()], axis=1)
    phi = jax.vmap(disk)(jnp.asarray(Z))
    np.testing.assert_allclose(phi.T @ phi / N, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(disk.least, memory.least, rtol=1e-8)
    assert both[1][1].L_g1 == pytest.approx(both[1][0].L_g1)


def test_the_sample_has_the_ends(monkeypatch):
    monkeypatch.setattr(on_disk, "SAMPLED_ROWS", 10)
    problem = bx.from_joint(rows=table(), stream=True, **LOSSES)
    assert 10 <= problem.data.sample.many <= 14 and in_memory(problem).n_contexts == problem.data.sample.many
    for name, column in table()[0].items():
        kept = np.asarray(problem.data.sample.contexts[name])
        assert kept.min() == column.min() and kept.max() == column.max()
    spread = bx.reduced(problem, bx.chebyshev(2)).data.features
    phi = jax.vmap(spread)(jnp.asarray(np.stack([*table()[0].values()], axis=1)))
    np.testing.assert_allclose(phi.T @ phi / N, np.eye(6), atol=1e-10)


SMALL = bx.amortised(m=4, steps=1, warm_up=2, width=2)


@pytest.mark.parametrize("way", ["reduced", "amortised"])
def test_runs_are_those_of_memory_and_go_on_to_the_same_bits(way, both, key, tmp_path):
    problems, estimator = (both[1], bx.saa(16)) if way == "reduced" else (both[0], SMALL)
    optimizer = optax.sgd(0.1, momentum=0.5)
    saved = lambda folder: bx.Checkpoint(tmp_path / folder)
    run = lambda problem, T, **kw: bx.minimize(problem, estimator, optimizer, X0, key=key, T=T, every=3, **kw)
    memory, disk = problems
    whole = run(disk, 6, checkpoint=saved("whole"))
    np.testing.assert_allclose(whole.x, run(memory, 6).x, rtol=1e-9)
    run(disk, 3, checkpoint=saved("stopped"))
    again = run(disk, 6, checkpoint=saved("stopped"))
    assert again.manifest["resumed_at"] == [3]
    np.testing.assert_array_equal(again.x, whole.x)
    changed = table()[0], np.where(np.arange(N) == 7, 0.0, table()[1])
    other = bx.from_joint(rows=changed, stream=True, **LOSSES)
    other = bx.reduced(other, bx.chebyshev(2)) if way == "reduced" else other
    with pytest.raises(ValueError, match="data"):  # control: one number of one row
        run(other, 9, checkpoint=saved("stopped"))


def store_of(folder, n=N):
    contexts, eta = table(n)
    cuts = np.arange(0, n + 1, 10)
    parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    return ClientStore.write(
        folder, ({"u": contexts["u"][p], "v": contexts["v"][p], "a": eta[p], "unused": eta[p]} for p in parts)
    )


BY_NAME = {**LOSSES, "f": lambda x, y, eta, xi: (y - x[1] * xi[0]) ** 2 / 2 + x[0] ** 2 / 2}


def test_a_large_store_is_streamed(tmp_path, monkeypatch, key):
    store = store_of(tmp_path / "store")
    make = lambda **kw: bx.from_joint(rows=store, context=["u", "v"], outcome="a", **BY_NAME, **kw)
    assert isinstance(make().data, joint.Rows)
    monkeypatch.setattr(joint, "MOST_BYTES", N * 3 * 8 - 1)
    assert isinstance(make().data, joint.OnDisk)
    problems = [bx.reduced(make(stream=stream), bx.chebyshev(2)) for stream in (False, None)]
    np.testing.assert_allclose(*gradients(bx.saa("all"), problems, key), rtol=1e-8)
    mapped = tuple(np.memmap(tmp_path / name, float, "w+", shape=(N,)) for name in "ab")
    assert isinstance(bx.from_joint(rows=mapped, **LOSSES).data, joint.Rows)  # two columns are below it
    monkeypatch.setattr(joint, "MOST_BYTES", 1)
    assert isinstance(bx.from_joint(rows=mapped, **LOSSES).data, joint.OnDisk)
    assert isinstance(bx.from_joint(rows=table(), **LOSSES).data, joint.Rows)  # arrays are in memory already


def peak(work):
    """The most bytes of Python and NumPy at once while this is done; buffers of JAX are not among them."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_store(tmp_path, key, monkeypatch):
    """A store of 17 MB: passed over, scaled on and differentiated exactly with a fraction of it."""
    monkeypatch.setattr(on_disk, "ROWS_A_READ", 4096)
    monkeypatch.setattr(on_disk, "SAMPLED_ROWS", 1024)
    names, x, rng = [f"z{i}" for i in range(15)], jnp.asarray(1.0), np.random.default_rng(0)
    part = lambda: {name: rng.uniform(-1, 1, 2**14) for name in [*names, "a"]}
    store = ClientStore.write(tmp_path / "store", (part() for _ in range(8)))
    losses = {"f": lambda x, y, eta, xi: y**2, "g": lambda x, y, eta, xi: (y - x * eta) ** 2}
    start = lambda x, xi: jnp.zeros(())
    make = lambda stream: bx.from_joint(rows=store, context=names, outcome="a", init_y=start, stream=stream, **losses)
    size = store.rows * 16 * 8
    assert peak(lambda: make(False)) > 0.9 * size  # control: in memory it takes all of it
    made = []
    assert peak(lambda: made.append(bx.reduced(make(True), bx.chebyshev(1)))) < 0.4 * size
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(made[0].data)) < 0.02 * size
    exact = jax.jit(lambda problem: bx.saa("all").estimate(key, problem, x, ())[0].grad)
    exact(made[0]).block_until_ready()  # what compiling takes is not asked
    assert peak(lambda: exact(made[0]).block_until_ready()) < 0.2 * size


def test_a_broken_row_is_named(key):
    contexts, eta = table()
    eta[37] = np.inf
    with pytest.raises(ValueError, match=r"finite. Got inf in the outcomes of row 37 \(1 such rows\)"):
        bx.from_joint(rows=(contexts, eta), stream=True, **LOSSES)


def test_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(on_disk, "MOST_ROWS", N - 1)
    with pytest.raises(ValueError, match=f"at most {N - 1}, whose numbers fit 32 bits. Got {N}; give every 2th"):
        bx.from_joint(rows=table(), stream=True, **LOSSES)


def test_monomials_are_refused_on_disk_too(both):
    with pytest.raises(ValueError, match=f"must determine W: the smallest eigenvalue .* on {N} contexts"):
        bx.reduced(both[0][1], lambda z: z[0] ** jnp.arange(20.0))


def test_check_compares_on_the_sample(both, key):
    from bilevelax.diagnostics.basis import basis_rows

    memory, disk = ({row.name: row.value for row in basis_rows(each, X0, key, 0.05, 1.0)} for each in both[1])
    assert set(memory) == set(disk) and "basis: gradient with twice the functions" in disk


def test_weights_of_each_row_are_refused_on_disk(both):
    sklearn = pytest.importorskip("bilevelax.sklearn")
    with pytest.raises(ValueError, match=r"keeps weights for each row in memory\. Got 50 rows on disk"):
        sklearn.with_conditional(both[0][1])
    assert sklearn.calibration(both[0][1]).rows == 12  # on the sample
    assert sklearn.forest_leaves(both[0][1]).redundant
