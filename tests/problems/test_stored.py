"""Stored contexts and outcomes."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax import random

import bilevelax as bx
from bilevelax.testing import check_problem


def test_from_arrays_samples_only_what_is_stored(key):
    contexts = {"z": jnp.arange(3.0)}
    outcomes = [np.array([10.0, 11.0]), np.array([20.0]), np.array([30.0, 31.0, 32.0])]
    problem = bx.from_arrays(
        f=lambda x, y, eta, xi: y * x + xi["z"],
        g=lambda x, y, eta, xi: (y - eta) ** 2 / 2,
        contexts=contexts,
        outcomes=outcomes,
        init_y=lambda x, xi: xi["z"],
        mu_g=1.0,
        L_g1=1.0,
    )
    check_problem(problem, jnp.asarray(0.0), key=key)
    xi = jax.vmap(problem.context)(random.split(key, 400))
    eta = jax.vmap(problem.conditional)(random.split(random.fold_in(key, 1), 400), xi)
    seen = {(int(row), float(value)) for row, value in zip(xi.row, eta, strict=True)}
    assert seen == {(i, float(v)) for i, values in enumerate(outcomes) for v in values}
    np.testing.assert_array_equal(xi.value["z"], contexts["z"][xi.row])
    # n = 6000 draws of outcome (30, 31, 32): standard error 0.0105
    y = bx.respond(problem, jnp.asarray(0.0), problem.nth_context(2), key=key, n=6000)
    assert abs(float(y) - 31.0) < 0.06


def shops():
    """Three shops with 2, 1 and 3 days, as a table."""
    return pd.DataFrame(
        {"shop": [0, 0, 1, 2, 2, 2], "size": [1.0, 1.0, 2.0, 3.0, 3.0, 3.0], "sold": [10.0, 11, 20, 30, 31, 32]}
    )


def mean_of_sales(outcomes, contexts):
    return bx.from_arrays(
        f=lambda x, y, eta, xi: (y - eta["sold"]) ** 2 / 2 + x * xi["size"],
        g=lambda x, y, eta, xi: (y - x - eta["sold"]) ** 2 / 2,
        contexts=contexts,
        outcomes=outcomes,
        init_y=lambda x, xi: jnp.zeros_like(xi["size"]),
    )


def test_ragged_groups_of_dicts_and_tables_by_their_columns(key):
    table = shops()
    groups = [rows[["sold", "shop"]] for _, rows in table.groupby("shop")]
    contexts = table.groupby("shop")[["size"]].first()
    named = mean_of_sales(groups, contexts)
    dicts = [{name: np.asarray(rows[name]) for name in ("sold", "shop")} for rows in groups]
    by_hand = mean_of_sales(dicts, {"size": np.asarray([1.0, 2.0, 3.0])})
    assert jax.tree.structure(named.data) == jax.tree.structure(by_hand.data)
    jax.tree.map(np.testing.assert_array_equal, named.data, by_hand.data)
    x = jnp.zeros(())
    answers = [float(bx.respond(named, x, named.nth_context(i), key=key)) for i in range(3)]
    np.testing.assert_allclose(answers, [10.5, 20.0, 31.0])
    with pytest.raises(ValueError, match=r"Got a pandas groupby; give \[rows for _, rows in groups\]"):
        mean_of_sales(table.groupby("shop")[["sold", "shop"]], contexts)
    # half the variance of each shop's sales, all shops alike
    assert bx.evaluate(named, x, key=key).mean == pytest.approx((0.25 / 2 + 0 + (2 / 3) / 2) / 3)


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (
            [{"sold": np.ones(2)}, {"sold": np.ones(1)}],
            "for each of the 3 contexts. Got 2 entries",
        ),
        ([{"sold": np.ones(2)}, {"sold": np.ones(0)}, {"sold": np.ones(1)}], "Got 3 entries, the shortest with 0 rows"),
        ([{"sold": np.ones(2), "b": np.ones(3)}] * 3, r"as many rows in each array. Got \[2, 3\] rows in context 0"),
        (
            [{"sold": np.ones(2)}, {"b": np.ones(2)}, {"sold": np.ones(1)}],
            "same parts in every context.* context 1",
        ),
        (
            [{"sold": np.array(["many"])}] * 3,
            r"`outcomes` of from_arrays must hold numbers. Got <U4 in its part \['sold'\]",
        ),
        ({"sold": np.full((3, 2), None)}, "`outcomes` of from_arrays must hold numbers. Got object"),
        ([pd.DataFrame({"sold": ["many"]})] * 3, "Column 'sold' of a table given to from_arrays must hold numbers"),
    ],
)
def test_groups_that_cannot_be(outcomes, told):
    with pytest.raises(ValueError, match=told):
        mean_of_sales(outcomes, {"size": np.ones(3)})
