"""What is fuzzed: folders and files, how each is damaged, how it is read, and which answer would be wrong."""

import contextlib
import gzip
import json
import os
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import mutations as m
import numpy as np
import optax
from jax import random
from problems import Problems

import bilevelax as bx
from bilevelax.datasets import ClientStore, from_csv
from bilevelax.report.records import read_all
from bilevelax.run.records.run_folder import runs_in
from bilevelax.sklearn import PersonalizedModel, RobustNewsvendor
from bilevelax.sklearn.persist import load_newsvendor, save_newsvendor
from bilevelax.tables.csv_files import read_table, write_with
from bilevelax.tables.demands import targets_of
from bilevelax.tables.schema import learn_schema

OLDER = Path(__file__).parents[1] / "files_0_1_0"


class Wrong(Exception):
    """An answer that a digest or a check could have known to be wrong."""


class Folder:
    """A folder of files of which one is damaged at a time, and put back."""

    def __init__(self, place):
        self.place = Path(place)
        self.files = {
            path.relative_to(self.place): path.read_bytes() for path in self.place.rglob("*") if path.is_file()
        }

    def damage(self, rng):
        """Change one file; returns whether somebody who knows the digests did it."""
        name = m.some(rng, sorted(self.files))
        path, data = self.place / name, self.files[name]
        way = int(rng.integers(20))
        if way == 0:
            path.unlink()
        elif way == 1:
            path.unlink()
            path.symlink_to(m.some(rng, ["/etc/passwd", "/dev/zero", "nowhere", self.place.parent / "victim"]))
        elif way == 2:
            path.unlink()
            path.mkdir()
        elif way == 3:
            other = m.some(rng, sorted(self.files))
            path.write_bytes(self.files[other])
        elif name.suffix == ".json" and way < 16:
            return self.forge(rng, path, data)
        elif name.suffix == ".npz" and way < 14:
            path.write_bytes(m.mutate_npz(rng, data))
        else:
            path.write_bytes(m.mutate_bytes(rng, data))
        return False

    def forge(self, rng, path, data):
        document, seal = m.mutate_json(rng, data), bool(rng.integers(2))
        if seal and isinstance(document, dict):
            with contextlib.suppress(ValueError, TypeError):
                document = m.sealed(document)
        path.write_text(json.dumps(document))
        return seal

    def put_back(self):
        for path in sorted(self.place.rglob("*"), reverse=True):
            if path.is_symlink() or (path.is_file() and path.relative_to(self.place) not in self.files):
                path.unlink()
            elif path.is_dir() and path.relative_to(self.place) in self.files:
                shutil.rmtree(path)
        for name, data in self.files.items():
            path = self.place / name
            if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.write_bytes(data)


def same(a, b, what):
    if not all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)):
        raise Wrong(f"{what} is another than was saved")


class Subject:
    """``one(rng)`` damages, reads and puts back; ValueError is a refusal."""

    def one(self, rng):
        forged = self.folder.damage(rng)
        try:
            self.read(forged)
        finally:
            self.folder.put_back()


class Store(Subject):
    def __init__(self, place):
        clients = [{"a": np.arange(2.0 * n).reshape(n, 2), "b": np.arange(n)} for n in (3, 1, 5, 2)]
        self.folder = Folder(ClientStore.write(place / "store", clients).folder)
        self.right = ClientStore(self.folder.place).get(np.arange(4))

    def read(self, forged):
        store = ClientStore(self.folder.place)
        got = store.get(np.arange(len(store)))
        store.verify()
        if not forged:
            same(got, self.right, "the clients")


class Model(Subject):
    """A newsvendor of today, or of 0.1.0 without digests."""

    def __init__(self, place, older):
        self.older = older
        if older:
            shutil.copytree(OLDER / "model", place / "model")
            self.X = np.zeros((3, 21))
        else:
            X = np.random.default_rng(0).normal(size=(30, 2))
            how = dict(
                policy="linear", conditional="knn", penalty=np.inf, members=2, max_iter=2, n_atoms=2, random_state=0
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                save_newsvendor(RobustNewsvendor(**how).fit(X, 50 + X[:, 0]), place / "model", {})
            self.X = X[:3]
        self.folder = Folder(place / "model")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.right = load_newsvendor(place / "model")[0].predict(self.X)

    def read(self, forged):
        model, _ = load_newsvendor(self.folder.place)
        X = self.X if model.n_features_in_ == self.X.shape[1] else np.zeros((3, model.n_features_in_))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that these rows have no names
            orders = model.predict(X)
        if not np.isfinite(orders).all() or orders.dtype.kind != "f":
            raise Wrong("an order is no finite number")
        if not forged and not self.older:
            same(orders, self.right, "an order")


class Meta(Subject):
    def __init__(self, place):
        rng = np.random.default_rng(0)
        X, y, groups = rng.normal(size=(20, 2)), np.arange(20) % 2, np.arange(20) // 10
        model = PersonalizedModel(max_iter=2, K=1, batch_size=2, random_state=0).fit(X, y, groups)
        self.folder, self.X = Folder(model.save(place / "meta")), X[:3]
        self.right = model.predict_proba(self.X)

    def read(self, forged):
        model = PersonalizedModel.load(self.folder.place)
        X = self.X if model.n_features_in_ == 2 else np.zeros((3, model.n_features_in_))
        shares = model.predict_proba(X)
        if not np.isfinite(shares).all():
            raise Wrong("a probability is no finite number")
        if not forged:
            same(shares, self.right, "a probability")


class Saved(Subject):
    """A folder of Result.save."""

    def __init__(self, place):
        history = [{"t": t, "seconds": t / 7, "norm": 1.0 / (1 + t)} for t in range(0, 50, 10)]
        x = {"w": jnp.arange(3.0), "b": (jnp.ones(2), [jnp.zeros(1)])}
        bx.Result(x, x, x, history, bx.Cost(xi=50), 1.0, 2.0, {"T": 50, "key": [0, 1]}).save(place / "saved")
        self.folder = Folder(place / "saved")
        self.right = bx.Result.load(place / "saved")

    def read(self, forged):
        result = bx.Result.load(self.folder.place)
        if not forged:
            same((result.x, result.x_hat, result.x_mean), (self.right.x,) * 3, "x")
            if (result.history, result.manifest, result.cost) != (
                self.right.history,
                self.right.manifest,
                self.right.cost,
            ):
                raise Wrong("the history is another than was saved")


class Listed(Subject):
    """Folders of runs, as `bilevelax runs` and `bilevelax report` read them."""

    def __init__(self, place):
        shutil.copytree(OLDER / "quadratic", place / "runs" / "quadratic", ignore=shutil.ignore_patterns("checkpoints"))
        self.folder = Folder(place / "runs")

    def read(self, forged):
        for status in runs_in(self.folder.place):
            f"{status.t:,} {status.T:,} {status.seconds:g} {status.left or 0:g}"
        read_all([self.folder.place])


class Checkpoints(Subject):
    """A run that goes on: with equal bits, or not at all."""

    def __init__(self, place):
        self.run(place / "run", 20)
        # saved too: a short run that is not saved is compiled in another way (docs/stability.md)
        self.folder, self.right = Folder(place / "run"), self.run(place / "right", 40).x

    problem = bx.stochastic(lambda x, xi: jnp.sum((x - xi) ** 2) / 2, lambda key, data: random.normal(key, (3,)))
    rule = (bx.maml(), optax.sgd(0.1))  # the same objects each time: they are compiled once

    def run(self, folder, T):
        how = dict(key=random.key(0), T=T, every=10, checkpoint=bx.Checkpoint(folder, every=10), progress=False)
        return bx.minimize(self.problem, *self.rule, jnp.zeros(3), **how)

    def read(self, forged):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = self.run(self.folder.place, 40)
        same(result.x, self.right, "x")

    def one(self, rng):
        forged = self.folder.damage(rng)
        try:
            self.read(forged)
        finally:
            shutil.rmtree(self.folder.place)
            for name, data in self.folder.files.items():
                (self.folder.place / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder.place / name).write_bytes(data)


class Csv(Subject):
    """Tables, as the newsvendor's commands and `from_csv` read them."""

    def __init__(self, place):
        self.place, self.data = place, (OLDER / "demand.csv").read_bytes()
        read_table(OLDER / "demand.csv").to_excel(place / "t.xlsx", index=False)
        self.kinds = [self.data, gzip.compress(self.data), (place / "t.xlsx").read_bytes()]

    def one(self, rng):
        path = self.place / m.some(rng, ["t.csv", "t.zip", "t.gz"])
        if rng.integers(4):
            path.write_bytes(m.mutate_csv(rng, self.data))
        else:  # spreadsheets and compressed files too
            path.write_bytes(m.mutate_bytes(rng, m.some(rng, self.kinds)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if rng.integers(4) == 0:
                self.store(path)
            else:
                self.newsvendor(path)

    def store(self, path):
        folder = self.place / "from_csv"
        try:
            from_csv(folder, path, "date")
            if not all(np.isfinite(each).all() for each in ClientStore(folder).get([0]).rows.values()):
                raise Wrong("a row is not finite")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def newsvendor(self, path):
        table, y = targets_of(read_table(path), ["demand"], path)[:2]
        X, _ = learn_schema(table, ["demand"], None, path).encode(table, path)
        if not np.isfinite(X.to_numpy(float)).all() or not np.isfinite(y).all():
            raise Wrong("a number read from a table is not finite")
        write_with(path, {"order": np.ones(len(read_table(path)))}, self.place / "out.csv")


class Commands(Model):
    """`bilevelax newsvendor order` in a process of its own: one sentence and exit code 1, or orders."""

    limited = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
runpy.run_module("bilevelax", run_name="__main__")
"""

    def __init__(self, place):
        super().__init__(place, older=True)
        self.out = place / "orders.csv"

    def read(self, forged):
        from fresh_process import python

        words = ["newsvendor", "order", self.folder.place, OLDER / "demand.csv", "--out", self.out]
        done = python("-c", self.limited, *words, timeout=120, JAX_PLATFORMS="cpu")
        if done.returncode not in (0, 1) or "Traceback" in done.stderr or "not foreseen" in done.stderr:
            raise Wrong(f"exit code {done.returncode}: {done.stderr[-500:]}")
        if done.returncode == 1 and len(done.stderr.strip().splitlines()) != 1:
            raise Wrong(f"more than a sentence: {done.stderr[-500:]}")


SUBJECTS = {  # how often each is taken, and how it is made
    "store": (30, Store),
    "saved": (20, Saved),
    "csv": (14, Csv),
    "listed": (16, Listed),
    "model": (6, lambda place: Model(place, older=False)),
    "older": (6, lambda place: Model(place, older=True)),
    "meta": (6, Meta),
    "checkpoints": (1, Checkpoints),
    "problems": (2, Problems),
    "commands": (0.01, Commands),
}


def outside(place):
    """What lies beside the fuzzed folder, to see that nothing is written there."""
    return {name: os.stat(place / name).st_mtime_ns for name in ("victim",)}, sorted(os.listdir(place))
