r"""
Ranking: maximise NDCG itself
=============================

A shop answers queries with lists of items, and what counts are the first places. NDCG weighs an item's relevance by the
logarithm of its rank, which jumps where two scores cross. With the rank written as a mean over the query's items of a
smooth indicator, it can be maximised: a problem with a lower level for each (query, item). Here items of popular
queries are more relevant and dearer, but within a query dear items are less so: a regression on labels learns the wrong
sign.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import RidgeCV

from bilevelax.report.curves import LINE_COLOURS
from bilevelax.sklearn import NDCGRanker


def lists(queries, rng):
    """(items, labels 0 to 3, query of each); the first column is the price."""
    qid = np.repeat(np.arange(queries), 12)
    popular, own = rng.normal(size=queries)[qid], rng.normal(size=(len(qid), 4))
    taste = 1.5 * popular + own @ [-0.7, 0.6, 0.3, 0.0] + 0.3 * rng.normal(size=len(qid))
    own[:, 0] += 2 * popular
    return own, np.digitize(taste, [0.5, 1.5, 2.5]), qid


rng = np.random.default_rng(0)
train, test = lists(40, rng), lists(400, rng)
ranker = NDCGRanker(5, alpha=1e-3).fit(*train)
line = RidgeCV(np.logspace(-2, 3, 12)).fit(train[0], train[1])
scores = {"NDCG": ranker.predict(test[0]), "regression on labels": line.predict(test[0])}

judge = NDCGRanker(5, alpha=1e-3).fit(np.arange(12.0)[:, None], np.arange(12) // 3)  # orders by its only column
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for colour, (name, values) in zip(LINE_COLOURS, scores.items(), strict=False):
    found = judge.ndcg(values[:, None], test[1], test[2])
    found = np.sort(found[~np.isnan(found)])  # nan: nothing is relevant
    axes.plot(found, np.linspace(0, 1, len(found)), color=colour, label=f"{name}, mean {found.mean():.3f}")
    print(f"{name}: NDCG@5 {found.mean():.3f}")
axes.set(xlabel="NDCG@5 of a query", ylabel="share of queries below")
axes.legend(frameon=False)
plt.show()
