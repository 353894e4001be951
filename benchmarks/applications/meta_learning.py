"""Few-shot Omniglot, as MAML and iMAML are measured, and the paper's own meta-learning task on tinyImageNet.

Omniglot: x holds a small convolutional network, the price of a head's size and the scale of scores. A task's follower
is ridge regression of its one-hot labels on the features of its few drawings; the leader pays cross-entropy on others
of them. That is eq. (9) with a network in front, by `saa`, whose followers and adjoints are exact. Not a timing.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, random
from published import Row, compared
from scipy.stats import t as student

import bilevelax as bx
from bilevelax.applications import meta_learning
from bilevelax.base.compiling import program
from bilevelax.datasets import load_omniglot, load_tinyimagenet, meta_learning_arrays

WAYS, SHOTS, QUERY = 5, 1, 5  # of training tasks
TASKS = 16  # of a step
FILTERS = 16, 16, 32, 64
TRAIN = 1200  # characters, as Finn et al. 2017; the other 423 are only tested on
STEPS, QUICK_STEPS = 200, 30
SEEDS, QUICK_SEEDS = 2, 1
JUDGED, QUICK_JUDGED = 600, 100  # test tasks
RATE = 3e-3
ESTIMATOR = bx.minibatch(bx.saa(1), TASKS)
ROTATIONS = 4  # a rotated character is another one
FEW_SHOT = {  # of Rajeswaran et al. 2019, Table 2; MAML's are of Finn et al. 2017
    (5, 1): "MAML 0.987 +- 0.004, iMAML 0.995 +- 0.003",
    (5, 5): "MAML 0.999 +- 0.001, iMAML 0.997 +- 0.001",
    (20, 1): "MAML 0.958 +- 0.003, iMAML 0.962 +- 0.004",
}

OWN_SEEDS, OWN_STEPS, OWN_IMAGES = 3, 100, 100  # of the paper's task: grouping and split; steps; images of a class
LAM = 2.0  # the paper's
GRADIENTS = {  # on the paper's task, all 20 tasks in each step
    "RT-MLMC, K = 6": bx.minibatch(bx.rt_mlmc(6, lower=bx.epoch_sgd(batch=8), batch=8), 20, contexts="spread"),
    "MAML, one step": bx.minibatch(bx.maml(1, 1 / LAM, batch=8), 20, contexts="spread"),
}

Images = Any  # (characters, 20, 28, 28)


class Drawn(NamedTuple):
    """eta: drawings to adapt on and others, labels 0, 1, ... in order."""

    support: jax.Array  # (ways, shots, 28, 28)
    query: jax.Array


def characters() -> tuple[Images, Images]:
    """To train on and to test on, in random order, every rotation a character of its own."""
    found = load_omniglot()
    rows = found.features[np.argsort(found.labels, kind="stable")].reshape(-1, 20, 28, 28)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    turned = lambda part: np.concatenate([np.rot90(part, k, (2, 3)) for k in range(ROTATIONS)])
    return turned(rows[:TRAIN]), turned(rows[TRAIN:])


def first(key: Any) -> dict[str, Any]:
    """A network without knowledge."""
    sizes = (1, *FILTERS)
    keys = random.split(key, len(FILTERS))
    weights = [
        random.normal(k, (3, 3, a, b)) * (2 / (9 * a)) ** 0.5 for k, a, b in zip(keys, sizes, FILTERS, strict=False)
    ]
    shifts = [jnp.zeros(b) for b in FILTERS]
    return {"weights": weights, "shifts": shifts, "price": jnp.zeros(()), "scale": jnp.ones(())}


def embed(x: Any, images: jax.Array) -> jax.Array:
    """(n, 28, 28) to (n, 256) of length one: four convolutions of stride 2, each image brought to unit size."""
    z = images[..., None]
    for w, b in zip(x["weights"], x["shifts"], strict=True):
        z = lax.conv_general_dilated(z, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        z = jax.nn.relu(z / jnp.sqrt(jnp.mean(z**2, axis=(1, 2, 3), keepdims=True) + 1e-6) + b)
    z = z.reshape(len(z), -1)
    return z / jnp.sqrt(jnp.sum(z**2, axis=1, keepdims=True) + 1e-6)


def flat(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Images of all ways, one after another, and their labels."""
    return rows.reshape(-1, 28, 28), jnp.repeat(jnp.arange(len(rows), dtype=jnp.int32), rows.shape[1])


def g(x: Any, y: jax.Array, eta: Drawn, xi: Any) -> jax.Array:
    images, labels = flat(eta.support)
    left = embed(x, images) @ y - jax.nn.one_hot(labels, y.shape[1])
    return jnp.sum(left**2) / 2 + jnp.exp(x["price"]) * jnp.sum(y**2) / 2


def f(x: Any, y: jax.Array, eta: Drawn, xi: Any) -> jax.Array:
    images, labels = flat(eta.query)
    scores = jnp.exp(x["scale"]) * embed(x, images) @ y
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def sample_task(key: Any, data: Images) -> jax.Array:
    return random.choice(key, len(data), (WAYS,), replace=False)


def sample_drawings(key: Any, xi: jax.Array, data: Images) -> Drawn:
    order = jax.vmap(lambda k: random.permutation(k, 20)[: SHOTS + QUERY])(random.split(key, WAYS))
    rows = data[xi[:, None], order]
    return Drawn(rows[:, :SHOTS], rows[:, SHOTS:])


def learned(train: Images, steps: int, seed: int) -> Any:
    """The network that tasks adapt from best."""
    problem = bx.Problem(
        f=f,
        g=g,
        sample_context=sample_task,
        sample_conditional=sample_drawings,
        init_y=lambda x, xi: jnp.zeros((4 * FILTERS[-1], WAYS)),
        data=jnp.asarray(train),
    )
    rule = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    key = random.key(seed)
    return bx.minimize(problem, ESTIMATOR, rule, first(key), key=key, T=steps, every=steps, progress=False).x


def classified(train: Images, steps: int, seed: int) -> Any:
    """The same network on as many images a step, trained to name all training characters."""
    rule = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    many, data = TASKS * WAYS * (SHOTS + QUERY), jnp.asarray(train)

    def cost(x: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        z = embed(x["network"], images)
        heads = x["heads"] / jnp.sqrt(jnp.sum(x["heads"] ** 2, axis=1, keepdims=True))
        scores = jnp.exp(x["network"]["scale"]) * z @ heads.T
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    @program()
    def step(x: Any, state: Any, key: Any, data: Any) -> tuple[Any, Any]:
        labels = random.randint(key, (many,), 0, len(data))
        images = data[labels, random.randint(random.fold_in(key, 1), (many,), 0, 20)]
        updates, state = rule.update(jax.grad(cost)(x, images, labels), state, x)
        return optax.apply_updates(x, updates), state

    key = random.key(seed)
    network = first(key) | {"scale": jnp.log(jnp.asarray(20.0))}
    x = {"network": network, "heads": random.normal(key, (len(train), 4 * FILTERS[-1]))}
    state = rule.init(x)
    for t in range(steps):
        x, state = step(x, state, random.fold_in(key, t), data)
    return x["network"]


@program()
def _embedded(x: Any, images: jax.Array) -> jax.Array:
    return embed(x, images)


def embedded(x: Any, images: Images) -> np.ndarray:
    """(characters, 20, features)."""
    rows = images.reshape(-1, 423, 28, 28)
    return np.concatenate([np.asarray(_embedded(x, jnp.asarray(part))) for part in rows]).reshape(*images.shape[:2], -1)


def ridge(support: np.ndarray, query: np.ndarray, price: float) -> np.ndarray:
    """Scores (queries, ways) by the follower's answer in closed form, in NumPy."""
    rows = support.reshape(-1, support.shape[2])
    b = np.repeat(np.eye(len(support)), support.shape[1], axis=0)
    return query @ rows.T @ np.linalg.solve(rows @ rows.T + price * np.eye(len(rows)), b)


def nearest(support: np.ndarray, query: np.ndarray, price: float) -> np.ndarray:
    """Scores by the distance to means."""
    means = support.mean(axis=1)
    return query @ means.T - np.sum(means**2, axis=1) / 2


def accuracies(features: np.ndarray, rule: Any, ways: int, shots: int, tasks: int, price: float = 0.0) -> np.ndarray:
    """Of every test task, on 15 drawings of each way (Finn et al. take as many as shots); the same for all rules."""
    rng, found = np.random.default_rng(1), []
    for _ in range(tasks):
        chosen = features[rng.choice(len(features), ways, replace=False)]
        order = rng.permuted(np.tile(np.arange(20), (ways, 1)), axis=1)[:, : shots + 15]
        rows = np.take_along_axis(chosen, order[:, :, None], axis=1)
        query = rows[:, shots:].reshape(-1, rows.shape[2])
        scores = rule(rows[:, :shots], query, price)
        found.append(np.mean(scores.argmax(axis=1) == np.repeat(np.arange(ways), rows.shape[1] - shots)))
    return np.array(found)


def interval(values: np.ndarray) -> str:
    """Mean over tasks and seeds; 95 % over tasks."""
    each = values.mean(axis=0)
    return f"{each.mean():.3f} +- {1.96 * each.std(ddof=1) / len(each) ** 0.5:.3f}"


def few_shot(quick: bool) -> list[Row]:
    train, test = characters()
    steps, tasks = (QUICK_STEPS, QUICK_JUDGED) if quick else (STEPS, JUDGED)
    ways_to_learn = {"ours": (learned, ridge), "classifier": (classified, nearest)}
    found: dict[tuple[str, int, int], list[np.ndarray]] = {}
    spent = dict.fromkeys(ways_to_learn, 0.0)
    for seed in range(QUICK_SEEDS if quick else SEEDS):
        for name, (learn, rule) in ways_to_learn.items():
            begun = time.process_time()
            x = learn(train, steps, seed)
            features, price = embedded(x, test), float(np.exp(x["price"]))
            for ways, shots in FEW_SHOT:
                seen = accuracies(features, rule, ways, shots, tasks, price)
                found.setdefault((name, ways, shots), []).append(seen)
            spent[name] += time.process_time() - begun
            print(seed, name, {k: round(float(v[-1].mean()), 4) for k, v in found.items() if k[0] == name}, flush=True)
    pixels = test.reshape(*test.shape[:2], -1)
    rows = []
    for (ways, shots), published in FEW_SHOT.items():
        ours, classifier = (np.stack(found[name, ways, shots]) for name in ways_to_learn)
        raw = accuracies(pixels, nearest, ways, shots, tasks)[None]
        rows.append(
            Row(
                f"Omniglot, {ways} characters a task, {shots} drawing{'s' * (shots > 1)} each, characters never met: "
                "accuracy, larger is better",
                f"{published} (64 filters a layer, trained far longer)",
                f"{interval(ours)}; gain {interval(ours - classifier)}",
                f"{interval(classifier)} (network that names characters, nearest mean); {interval(raw)} (pixels)",
                spent["ours"],
            )
        )
    return rows


def of_the_paper(quick: bool) -> Row:
    """Loss on held-out images of classifiers that adapt to the end, on the paper's task."""
    begun, features = time.process_time(), load_tinyimagenet()
    steps = QUICK_STEPS if quick else OWN_STEPS
    rule = optax.adam(optax.cosine_decay_schedule(1e-2, steps))
    found: dict[str, list[float]] = {}
    for seed in range(2 if quick else OWN_SEEDS):
        arrays = meta_learning_arrays(features, seed=seed, held_out=0.1, images=OWN_IMAGES)
        app = meta_learning.make(arrays.train, arrays.test, lam=LAM)
        found.setdefault("no centre", []).append(app.metrics(app.x1)["upper_loss"])
        for name, estimator in GRADIENTS.items():
            key = random.key(seed)
            x = bx.minimize(app.problem, estimator, rule, app.x1, key=key, T=steps, every=steps, progress=False).x
            found.setdefault(name, []).append(app.metrics(x)["upper_loss"])
        print(seed, {name: round(values[-1], 4) for name, values in found.items()}, flush=True)
    ours, one_step = (np.array(found[name]) for name in GRADIENTS)
    return Row(
        f"tinyImageNet, the paper's 20 tasks of 10 classes, lambda = 2, {OWN_IMAGES} images a class: loss on held-out "
        "images, adapted to the end; smaller is better",
        "a figure without numbers: RT-MLMC below MAML",
        f"{over_seeds(ours)} (RT-MLMC, K = 6); minus MAML {over_seeds(ours - one_step)}",
        f"{over_seeds(one_step)} (MAML, one step); {over_seeds(np.array(found['no centre']))} (no centre)",
        time.process_time() - begun,
    )


def over_seeds(values: np.ndarray) -> str:
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():.3f} +- {half:.3f}"


def run(quick: bool = False) -> None:
    rows = [*few_shot(quick), of_the_paper(quick)]
    notes = (
        f"Omniglot: {TRAIN} characters and their rotations to train on, the others to test on, as Finn et al. do; "
        f"{STEPS} steps of {TASKS} tasks of {WAYS} characters, {SHOTS} drawing; {SEEDS} seeds. One network for all "
        f"rows. Intervals: 95 % over {JUDGED} test tasks. Nothing was tuned but the number of steps, for time.",
        "The classifier is the same network on as many images a step, with cosine scores.",
        f"Ours has {FILTERS} filters; published networks have 64 a layer and batch normalisation.",
        f"tinyImageNet: {OWN_STEPS} steps of Adam on all tasks; 95 % over {OWN_SEEDS} groupings and splits.",
        "Seconds are CPU seconds, on a shared machine; ours on Omniglot is one training for its three rows.",
    )
    compared("meta_learning", "Meta-learning", rows, notes, quick=quick)


if __name__ == "__main__":
    run()
