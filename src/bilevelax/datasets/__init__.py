"""Real data: loaders with checksums, class-to-task grouping, splits, and feature extraction."""

from bilevelax.datasets.client_store import ClientStore
from bilevelax.datasets.client_writer import ClientWriter, from_csv, from_parquet
from bilevelax.datasets.demand import Demand, load_bakery, load_yaz
from bilevelax.datasets.features import Features, load_features, load_tinyimagenet
from bilevelax.datasets.grouping import group_classes
from bilevelax.datasets.omniglot import load_omniglot
from bilevelax.datasets.pjm import Load, load_pjm
from bilevelax.datasets.tasks import TaskArrays, meta_learning_arrays, split

__all__ = [
    "ClientStore",
    "ClientWriter",
    "Demand",
    "Features",
    "Load",
    "TaskArrays",
    "from_csv",
    "from_parquet",
    "group_classes",
    "load_bakery",
    "load_features",
    "load_omniglot",
    "load_pjm",
    "load_tinyimagenet",
    "load_yaz",
    "meta_learning_arrays",
    "split",
]
