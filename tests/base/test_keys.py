"""Keys written out straight: the bits of JAX's own, everywhere a key can go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from bilevelax.base.compiling import program
from bilevelax.base.keys import STRAIGHT, _rounds, is_straight, straight, usual

DRAWS = {
    "split": lambda key: random.key_data(random.split(key, 5)),
    "split in a shape": lambda key: random.key_data(random.split(key, (2, 3))),
    "fold_in": lambda key: random.key_data(random.fold_in(key, 2**31 + 7)),
    "fold_in of a traced number": lambda key: random.key_data(
        jax.vmap(lambda i: random.fold_in(key, i))(jnp.arange(4))
    ),
    **{f"bits of {n}": lambda key, n=n: random.bits(key, (3, 7), f"uint{n}") for n in (8, 16, 32, 64)},
    "uniform": lambda key: random.uniform(key, (4, 2)),
    "uniform, single": lambda key: random.uniform(key, (5,), jnp.float32),
    "normal": lambda key: random.normal(key, (9,)),
    "one normal": random.normal,
    "randint": lambda key: random.randint(key, (6,), -3, 1000),
    "choice": lambda key: random.choice(key, 10, (4,), replace=False),
    "permutation": lambda key: random.permutation(key, 12),
    "categorical": lambda key: random.categorical(key, jnp.zeros(5), shape=(8,)),
    "no numbers": lambda key: random.normal(key, (0,)),
}
WAYS = {
    "by hand": lambda draw: draw,
    "jit": jax.jit,
    "vmap": lambda draw: jax.jit(lambda key: jax.vmap(draw)(random.split(key, 3))),
    "scan": lambda draw: jax.jit(
        lambda key: lax.scan(lambda c, i: (c, draw(random.fold_in(key, i))), 0, jnp.arange(3))[1]
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DRAWS)
def test_the_same_bits(name, way, key):
    draw = WAYS[way](DRAWS[name])
    key = random.fold_in(key, 3)
    np.testing.assert_array_equal(draw(key), draw(straight(key)))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**40 + 3])
def test_the_same_seeds(seed):
    made = random.key(seed, impl=STRAIGHT)
    np.testing.assert_array_equal(random.key_data(made), random.key_data(random.key(seed)))


def test_draws_differ_from_a_wrong_cipher(key, monkeypatch):
    """Control: one rotation changed, and no bit pattern survives."""
    monkeypatch.setattr("bilevelax.base.keys.ROTATIONS", ((13, 15, 26, 7), (17, 29, 16, 24)))
    monkeypatch.setattr("bilevelax.base.keys._rounds", _rounds.__wrapped__)  # no trace of it is kept
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(random.bits(key, (4,)), random.bits(straight(key), (4,)))


def rotations_compiled(key):
    """In a program of two ciphers in a row and two draws from the last: 20 for each of their words."""

    def chain(key):
        key = random.fold_in(random.fold_in(key, 1), 2)
        return random.uniform(key, (3,)), random.normal(key, (5,)), random.key_data(key)

    return jax.jit(chain).lower(straight(key)).compile().as_text().count("shift-left(")


def test_every_cipher_is_compiled_once(key, monkeypatch):
    """Keys are ciphers of ciphers; as a control, XLA writes those behind a key into whatever uses it."""
    once = rotations_compiled(key)
    monkeypatch.setattr("bilevelax.base.keys._rounds", _rounds.__wrapped__)
    assert once <= 4 * 2 * 20 < rotations_compiled(key)


def test_programs_take_and_give_usual_keys(key):
    """Inside, a sampler meets a straight key that jax.random accepts; outside nobody sees it."""
    kinds = []

    @program(static_argnames="n")
    def draw(key, n):
        kinds.append(is_straight(key))
        return random.normal(key, (n,)), random.fold_in(key, 1)

    numbers, after = draw(key, n=3)
    assert kinds == [True] and not is_straight(after)
    np.testing.assert_array_equal(numbers, random.normal(key, (3,)))
    np.testing.assert_array_equal(random.key_data(after), random.key_data(random.fold_in(key, 1)))


def test_keys_of_other_kinds_stay():
    given = {"other": random.key(0, impl="rbg"), "raw": jnp.zeros(2, jnp.uint32), "number": 3}
    kept = straight(given)
    assert kept is given
    both = usual(straight({"key": random.key(1), **given}))
    assert random.key_impl(both["other"]) == random.key_impl(given["other"])


def test_no_loops_are_left(key):
    """What the straight cipher is for, and the control: JAX's own has a loop in each place that draws."""
    loops = lambda key: jax.jit(random.normal).lower(key).compile().as_text().count("while(")
    assert loops(straight(key)) == 0 < loops(key)


def test_on_a_mesh(key):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("contexts",))
    spec = jax.sharding.PartitionSpec("contexts")
    draw = jax.shard_map(jax.vmap(random.normal), mesh=mesh, in_specs=spec, out_specs=spec)
    keys = random.split(key, 4)
    np.testing.assert_array_equal(jax.jit(draw)(keys), jax.jit(draw)(straight(keys)))
