r"""
A classifier for rows that will not look like those of training
===============================================================

Tumours are told apart by 30 measured columns. In the clinic the instrument will be less exact than in the study: noise
is added to the columns of the test rows, more and more of it. Plain logistic regression was tuned for clean rows and
leans on small differences of columns. ``RobustClassifier`` fits for the worst law of rows near that of the study
(Sinkhorn DRO) and, without ``lam`` and ``eps``, chooses by cross-validation how near. The score of a blurred row is
one normal variable, so its cost is computed, not sampled.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bilevelax.report.curves import LINE_COLOURS
from bilevelax.sklearn import RobustClassifier

X, y = load_breast_cancer(return_X_y=True)
train, test, labels, truth = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
rules = {
    "Sinkhorn": RobustClassifier(lam=3.0, eps=0.3),
    "Wasserstein": RobustClassifier("wasserstein", radius=0.03),
    "plain, tuned": make_pipeline(
        StandardScaler(),
        LogisticRegressionCV(l1_ratios=(0,), max_iter=1000, scoring="neg_log_loss", use_legacy_attributes=False),
    ),
}
noises = np.linspace(0, 2, 9)
noise = np.random.default_rng(0).normal(size=(10, *test.shape)) * train.std(axis=0)

figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for colour, (name, rule) in zip(LINE_COLOURS, rules.items(), strict=False):
    rule.fit(train, labels)
    losses = [np.mean([log_loss(truth, rule.predict_proba(test + size * n)) for n in noise]) for size in noises]
    axes.plot(noises, losses, color=colour, label=name)
    print(f"{name}: log loss {losses[0]:.3f} on clean rows, {losses[4]:.3f} with noise of one standard deviation")
axes.set(xlabel="noise added to test rows, standard deviations of a column", ylabel="log loss")
axes.legend(frameon=False)
plt.show()
