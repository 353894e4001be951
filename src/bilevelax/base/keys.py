"""Keys whose cipher is written out straight: the bits of JAX's threefry, without its loops.

On CPU JAX lowers threefry2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) to a loop in every
place that draws, and each of its turns starts a dozen tiny kernels. Written out, the twenty rounds are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.random import define_prng_impl

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
THREEFRY = "threefry2x32"
PARTITIONABLE = "jax_threefry_partitionable"  # how JAX numbers its draws by default
MOST_NUMBERS = 2**32  # numbers that one call can draw

Word = jax.Array  # uint32


def cipher(key: jax.Array, x0: Word, x1: Word) -> tuple[Word, Word]:
    """Threefry-2x32-20 of two words under a key of two words, as one piece of a program.

    Keys are ciphers of ciphers. Written into whatever uses them, as XLA would, each is compiled again with all those
    behind it: half the compile time of a small run.
    """
    with set_xla_metadata(inlineable="false"):
        return _rounds(key, x0, x1)


@jax.jit
def _rounds(key: jax.Array, x0: Word, x1: Word) -> tuple[Word, Word]:
    k0, k1 = key[..., 0], key[..., 1]
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(PARITY))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = x0 ^ _rotated(x1, rotation)
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + jnp.uint32(block + 1)
    return x0, x1


def _rotated(x: Word, bits: int) -> Word:
    return lax.shift_left(x, jnp.uint32(bits)) | lax.shift_right_logical(x, jnp.uint32(32 - bits))


def _numbered(key: jax.Array, shape: tuple[int, ...]) -> tuple[Word, Word]:
    """The cipher of 0, 1, 2, ... in 64 bits, in this shape."""
    if prod(shape) >= MOST_NUMBERS:
        raise ValueError(f"One call can draw fewer than 2**32 numbers. Got the shape {shape}; draw them in parts.")
    number = lax.iota(jnp.uint32, prod(shape)).reshape(shape)
    return cipher(key, jnp.zeros_like(number), number)


def _seed(seed: jax.Array) -> jax.Array:
    wide = seed.dtype.itemsize == 8
    high = lax.shift_right_logical(seed, jnp.asarray(32, seed.dtype)) if wide else jnp.zeros_like(seed)
    return jnp.stack([high.astype(jnp.uint32), seed.astype(jnp.uint32)])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_numbered(key, shape), axis=-1)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    word = jnp.asarray(data, jnp.uint32)
    return jnp.stack(cipher(key, jnp.zeros_like(word), word))


def _bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _numbered(key, shape)
    if width == 64:
        return lax.shift_left(high.astype(jnp.uint64), jnp.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


STRAIGHT = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="straight_threefry",
    tag="st",
)


def kind(leaf: Any) -> Any:
    """Of a typed key; None of anything else."""
    typed = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return random.key_impl(leaf) if typed else None


def is_threefry(leaf: Any) -> bool:
    """A key of JAX's default kind, drawing as it does by default."""
    return str(kind(leaf)) == THREEFRY and bool(getattr(jax.config, PARTITIONABLE))


def is_straight(leaf: Any) -> bool:
    return kind(leaf) == STRAIGHT


def straight(tree: Any) -> Any:
    """The same tree whose keys are written out straight; keys of other kinds stay."""
    return _converted(tree, is_threefry, STRAIGHT)


def usual(tree: Any) -> Any:
    """The way back."""
    return _converted(tree, is_straight, THREEFRY)


def _converted(tree: Any, mine: Callable[[Any], bool], kind: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    if not any(map(mine, leaves)):
        return tree
    new = [random.wrap_key_data(random.key_data(a), impl=kind) if mine(a) else a for a in leaves]
    return jax.tree.unflatten(structure, new)
