"""Clients on disk: what is read is what was written, and a run from a store has the bits of a run in memory."""

import dataclasses
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import bilevelax as bx
from bilevelax import datasets
from bilevelax.base.addresses import as_numbers, find, tag
from bilevelax.datasets import ClientStore, ClientWriter, from_csv, from_parquet
from bilevelax.problems import clients as clients_file
from bilevelax.problems.clients import client
from bilevelax.problems.feed import Fed, Feeder, Source
from bilevelax.run.devices import columns_of

M, D = 40, 3


def make_clients(sizes):
    rng = np.random.default_rng(0)
    for n in sizes:
        a = rng.normal(size=(n, D))
        yield {"a": a, "b": a @ np.arange(D) + 0.1 * rng.normal(size=n)}


@pytest.fixture(scope="module")
def sizes():
    return np.random.default_rng(1).integers(1, 7, M)


@pytest.fixture(scope="module")
def store(sizes, tmp_path_factory):
    return ClientStore.write(tmp_path_factory.mktemp("clients") / "store", make_clients(sizes))


def test_what_is_written_is_read(store, sizes):
    clients = list(make_clients(sizes))
    ids = [5, 0, M - 1, 5]
    got = store.get(ids)
    assert len(store) == M and store.rows == sizes.sum() and store.longest == sizes.max()
    for row, i in enumerate(ids):
        n = sizes[i]
        np.testing.assert_array_equal(got.mask[row], np.arange(store.longest) < n)
        for name, a in clients[i].items():
            np.testing.assert_array_equal(got.rows[name][row, :n], a)
            np.testing.assert_array_equal(got.rows[name][row, n:], np.repeat(a[-1:], store.longest - n, 0))
    np.testing.assert_array_equal(got.id, ids)
    short = store.get(ids, longest=2)
    np.testing.assert_array_equal(short.rows["a"], got.rows["a"][:, :2])
    with pytest.raises(ValueError, match=r"`ids` of ClientStore.get must lie in \[0, 40\). Got 3 to 40."):
        store.get([3, 40])
    with pytest.raises(ValueError, match="read-only"):
        store.values["a"][0] = 0


def test_clients_of_equal_size(tmp_path):
    with ClientWriter(tmp_path / "store") as writer:  # all five at once
        each = list(make_clients([4] * 5))
        writer.add({name: np.concatenate([one[name] for one in each]) for name in each[0]}, [4] * 5)
    store = ClientStore(tmp_path / "store")
    np.testing.assert_array_equal(store.get([3]).rows["a"][0], list(make_clients([4] * 5))[3]["a"])
    assert store.get([3], longest=2).mask.shape == (1, 2) and store.get([3]).mask.all()


def test_draws_are_addressed_and_exact(store, sizes, key):
    """Every 64-bit number has its client: numbers 0, 1, 2, ... visit all clients alike, or all rows."""
    np.testing.assert_array_equal(store.draw(np.arange(2 * M, dtype=np.uint64)), [*range(M)] * 2)
    by_rows = store.draw(np.arange(store.rows, dtype=np.uint64), "rows")
    np.testing.assert_array_equal(np.bincount(by_rows), sizes)
    ten, five = store.sample(key, 10), store.sample(key, 5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:5], b), ten, five)
    assert len(set(ten.id)) > 5


def test_damaged_stores(store, tmp_path):
    def damaged(damage):
        folder = tmp_path / damage.__name__
        shutil.copytree(store.folder, folder)
        damage(folder)
        return folder

    def cut(folder):
        (folder / "a.bin").write_bytes((folder / "a.bin").read_bytes()[:-8])

    def flip(folder):
        data = bytearray((folder / "a.bin").read_bytes())
        data[100] ^= 1
        (folder / "a.bin").write_bytes(data)

    def edit(folder):
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace('"longest": ', '"longest": 1'))

    with pytest.raises(ValueError, match=r"a.bin must have \d+ bytes. Got \d+: it is truncated or missing"):
        ClientStore(damaged(cut))
    opened = ClientStore(damaged(flip))
    with pytest.raises(ValueError, match=r"a.bin is not the expected file: its SHA256 is"):
        opened.verify()
    with pytest.raises(ValueError, match=r"manifest.json is damaged .*changed after it was written"):
        ClientStore(damaged(edit))
    with pytest.raises(ValueError, match="There is no client store in"):
        ClientStore(tmp_path / "nowhere")
    store.verify()


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "must hold at least one client. Got none."),
        ([{"a": np.ones((2, 3)), "b": np.ones(3)}], r"columns with one entry for each of its rows.*'a': 2, 'b': 3"),
        ([{"a": np.ones((0, 3))}], "at least one. Got {'a': 0}"),
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], r"Every client must have the columns \['a'\]. Got \['b'\]"),
        ([{"a": np.ones((2, 3))}, {"a": np.ones((2, 4))}], r"'a' must have rows of shape \(3,\).*Got \(4,\)"),
        ([{"a": np.asarray(["x", None])}], "must have a plain name and numbers as values. Got 'a' of object"),
    ],
)
def test_bad_clients_leave_nothing_behind(clients, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        ClientStore.write(tmp_path / "store", clients)
    assert not (tmp_path / "store").exists()


def test_tables_with_a_client_column(tmp_path, monkeypatch):
    """Rows in any order, in batches of 3."""
    monkeypatch.setattr(datasets.client_writer, "BATCH", 3)
    names = ["u", "v", "u", "w", "v", "u", "u"]
    values = np.arange(7.0)
    text = "who,value\n" + "".join(f"{name},{value}\n" for name, value in zip(names, values, strict=True))
    (tmp_path / "t.csv").write_text(text)
    numbers = from_csv(tmp_path / "csv", tmp_path / "t.csv", "who")
    expected = {name: [v for n, v in zip(names, values, strict=True) if n == name] for name in "uvw"}

    def check(folder, numbers):
        store = ClientStore(folder)
        for name, rows in expected.items():
            got = store.get([numbers[name]])
            np.testing.assert_array_equal(got.rows["value"][got.mask], rows)

    check(tmp_path / "csv", numbers)
    with pytest.raises(ValueError, match=r"`client` must name a column of .*t.csv, one of \['who', 'value'\]. Got 'x'"):
        from_csv(tmp_path / "bad", tmp_path / "t.csv", "x")
    (tmp_path / "words.csv").write_text("who,value\nu,blue\n")
    with pytest.raises(ValueError, match=r"must hold numbers in every column but 'who'.*blue"):
        from_csv(tmp_path / "bad", tmp_path / "words.csv", "who")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"who": names, "value": values}), tmp_path / "t.parquet")
    check(tmp_path / "parquet", from_parquet(tmp_path / "parquet", tmp_path / "t.parquet", "who"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["csv", "parquet", "t.csv", "t.parquet", "words.csv"]


def loss(y, row):
    return (row["a"] @ y - row["b"]) ** 2 / 2


LOSSES = {
    "f": lambda x, y, eta, xi: loss(y, eta),
    "g": lambda x, y, eta, xi: loss(y, eta) + jnp.sum((y - x) ** 2),
    "init_y": lambda x, xi: x,
    "mu_g": 2.0,
    "L_g1": 30.0,
}
X1 = jnp.zeros(D)
OPTIMIZER = optax.sgd(0.05)
MAML, RT = bx.maml(), bx.minibatch(bx.rt_mlmc(2, inverse=bx.neumann(1)), 3)


@pytest.fixture(scope="module")
def on_disk(store):
    return bx.from_clients(**LOSSES, store=store, resident=4)


@pytest.fixture(scope="module")
def in_memory(store, on_disk):
    """The same problem with every client in memory: client number (tag mod M)."""

    def sample_context(key, data):
        words = tag(key).astype(jnp.uint64)
        i = ((words[0] << jnp.uint64(32)) | words[1]) % jnp.uint64(M)
        return jax.tree.map(lambda a: a[i], data)

    data = jax.tree.map(jnp.asarray, store.get(np.arange(M)))
    return dataclasses.replace(on_disk, sample_context=sample_context, data=data, source=None)


def run(problem, estimator=MAML, T=25, **kw):
    return bx.minimize(problem, estimator, OPTIMIZER, X1, key=random.key(3), T=T, every=10, **kw)


@pytest.mark.parametrize("estimator", [RT, bx.saa(3), MAML], ids=["rt_mlmc", "saa", "maml"])
def test_a_store_gives_the_bits_of_memory(estimator, on_disk, in_memory):
    a, b = run(on_disk, estimator), run(in_memory, estimator)
    for part in ("x", "x_hat", "x_mean"):
        np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
    assert float(jnp.linalg.norm(a.x)) > 0.1 and a.cost == b.cost


def test_a_run_from_a_store_resumes(on_disk, store, tmp_path):
    whole = run(on_disk)
    saved = {"checkpoint": bx.Checkpoint(tmp_path / "run", every=10)}
    run(on_disk, T=10, **saved)
    np.testing.assert_array_equal(run(on_disk, **saved).x, whole.x)
    other = ClientStore.write(tmp_path / "other", make_clients([6] * M))
    with pytest.raises(ValueError, match="`data` of the problem changed"):
        run(bx.from_clients(**LOSSES, store=other, resident=4), **saved)


def test_unseen_clients_and_diagnostics(on_disk, tmp_path, key):
    unseen = client(ClientStore.write(tmp_path / "unseen", make_clients([5, 5])), 1)
    y = bx.respond(on_disk, X1, unseen, key=key)
    A, b = np.asarray(unseen.rows["a"]), np.asarray(unseen.rows["b"])
    np.testing.assert_allclose(y, np.linalg.solve(A.T @ A / 5 + 2 * np.eye(D), A.T @ b / 5), rtol=1e-6)
    assert bx.evaluate(on_disk, X1, key=key, n=20).mean > 0


def test_contexts_that_were_not_read_are_not_taken_for_others(key):
    keys = random.split(key, 3)
    fed = Fed(jax.vmap(tag)(keys[:2]), {"v": jnp.asarray([[1.0], [2.0]])})
    assert [float(find(k, *fed)["v"][0]) for k in keys[:2]] == [1.0, 2.0]
    assert jnp.isnan(find(keys[2], *fed)["v"][0])


def test_estimators_that_do_not_tell_are_refused(on_disk):
    with pytest.raises(ValueError, match="`estimator` of minimize must tell its contexts' keys"):
        run(on_disk, bx.stateless(lambda key, problem, x: bx.Estimate(x, bx.Cost(), {})))


def test_the_next_chunk_is_read_while_this_one_runs(key):
    asked = []

    def read(numbers):
        asked.append(len(numbers))
        return {"v": np.zeros((len(numbers), 1))}

    feeder = Feeder(Source(read, ""), lambda t: random.split(random.fold_in(key, t), 2), every=5)
    first = feeder.after(0)
    for _ in range(200):
        if len(asked) == 2:
            break
        time.sleep(0.01)
    assert asked == [10, 10] and first.contexts["v"].shape == (5, 2, 1)
    expected = jax.vmap(tag)(random.split(random.fold_in(key, 7), 2))  # step 7 is the second of the second chunk
    np.testing.assert_array_equal(feeder.after(5).tags[1], expected)
    assert as_numbers(expected).dtype == np.uint64
    feeder.close()


def nbytes(tree):
    return sum(a.nbytes for a in jax.tree.leaves(tree))


@pytest.mark.parametrize("sampling", ["uniform", "rows"])
def test_one_long_client_among_many_short_ones_costs_its_own_rows(sampling, tmp_path, key):
    """500 clients of 10 rows and one of 20,000: 25,000 rows in all, and no more are ever held."""
    rows = lambda n: {"a": np.full((n, 4), float(n), "f4"), "b": np.zeros(n, "f4")}
    store = ClientStore.write(tmp_path / "store", map(rows, [10] * 500 + [20_000]))
    whole = store.rows * 5 * 4
    problem = bx.from_clients(**LOSSES, store=store, sampling=sampling)
    assert nbytes(problem.data) <= 2 * whole  # padded: 256 clients of 20,000 rows
    feeder = Feeder(problem.source, lambda t: random.split(random.fold_in(key, t), 8), every=100)
    fed = [feeder.after(t) for t in (0, 100, 200)]
    feeder.close()
    assert max(map(nbytes, fed)) <= 2 * whole < 800 * 20_000 * 5 * 4 / 300
    on_mesh = Feeder(problem.source, feeder.keys, 100, columns_of(jax.make_mesh((1,), ("contexts",))))
    jax.tree.map(np.testing.assert_array_equal, fed[0], on_mesh.after(0))
    on_mesh.close()
    assert len({jax.tree.map(jnp.shape, each) == jax.tree.map(jnp.shape, fed[0]) for each in fed}) <= 2


def test_packed_clients_are_those_of_the_store(on_disk, store, sizes, key):
    """Every client, from the rows of all, as `get` pads it."""
    ids = np.asarray([7, 0, 7, M - 1])
    packed = clients_file.packed(store, ids, store.longest, clients_file.room_of(store, ids, store.longest, 0))
    for row, i in enumerate(ids):
        place = clients_file.Place(*(jnp.asarray(a[row]) for a in packed.places))
        got = clients_file.unpacked(place, jax.tree.map(jnp.asarray, packed.rows), store.longest)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[0]), got, store.get([i]))
    assert packed.rows["b"].shape[1] >= store.room(ids) == sizes[[0, 7, M - 1]].sum()
    lost = clients_file.unpacked(place._replace(there=jnp.nan), packed.rows, store.longest)
    assert jnp.isnan(lost.rows["a"]).all()  # a client that was not read is not taken for another


def test_the_client_that_spoils_x_is_named(tmp_path, monkeypatch):
    """A store of 0.1.0 may hold what is not written any more."""
    monkeypatch.setattr(datasets.client_writer, "require_kept_by_jax", lambda *a: None)
    good = list(make_clients([3] * 4))
    good[2]["b"][1] = np.inf
    store = ClientStore.write(tmp_path / "store", good)
    with pytest.raises(
        bx.RunStopped, match=r"x became non-finite at t = .* Its clients were [\d, ]+\. Client 2 holds rows"
    ):
        run(bx.from_clients(**LOSSES, store=store, resident=2), bx.minibatch(bx.saa(3), 4))
