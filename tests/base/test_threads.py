"""Small products use one thread."""

import numpy as np
import threadpoolctl

from bilevelax.applications.newsvendor.prepare import Scaling
from bilevelax.applications.newsvendor.stored_rules import STORED_RULES, stored_orders
from bilevelax.base.threads import one_thread


def threads():
    return {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"}


def test_a_stored_rule_orders_on_one_thread_and_leaves_the_others_as_they_were():
    seen = []

    def orders(arrays, z):
        seen.append(threads())
        return STORED_RULES["linear"].orders(arrays, z)

    X = np.random.default_rng(0).normal(size=(50, 3))
    arrays = [np.ones((2, 1, 3)), np.zeros((2, 1))]
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()
        stored_orders(STORED_RULES["linear"]._replace(orders=orders), arrays, Scaling.of(X, np.ones(50)), X)
        assert seen == [{1}, {1}] and threads() == before
        with one_thread():
            assert threads() == {1}
