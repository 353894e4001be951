"""Real data: loaders with checksums, class-to-task grouping, splits, and feature extraction."""

from bilevelax.datasets.client_store import ClientStore
from bilevelax.datasets.client_writer import ClientWriter, from_csv, from_parquet
from bilevelax.datasets.features import Features, load_features, load_tinyimagenet
from bilevelax.datasets.grouping import group_classes
from bilevelax.datasets.omniglot import load_omniglot
from bilevelax.datasets.tasks import TaskArrays, meta_learning_arrays, split

__all__ = [
    "ClientStore",
    "ClientWriter",
    "Features",
    "TaskArrays",
    "from_csv",
    "from_parquet",
    "group_classes",
    "load_features",
    "load_omniglot",
    "load_tinyimagenet",
    "meta_learning_arrays",
    "split",
]
