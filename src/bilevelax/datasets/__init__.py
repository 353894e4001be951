"""Real data: loaders with checksums, class-to-task grouping, splits, and feature extraction."""

from typing import TYPE_CHECKING

from bilevelax.base.lazy import at_first_use
from bilevelax.datasets.client_writer import ClientWriter, from_csv, from_parquet
from bilevelax.datasets.demand import Demand, load_bakery, load_yaz
from bilevelax.datasets.features import Features, load_features, load_tinyimagenet
from bilevelax.datasets.lambdarank import Ranked, load_lambdarank
from bilevelax.datasets.omniglot import load_omniglot
from bilevelax.datasets.pjm import Load, load_pjm

if TYPE_CHECKING:
    from bilevelax.datasets.client_store import ClientStore
    from bilevelax.datasets.grouping import group_classes
    from bilevelax.datasets.tasks import TaskArrays, meta_learning_arrays, split

__all__ = [
    "ClientStore",
    "ClientWriter",
    "Demand",
    "Features",
    "Load",
    "Ranked",
    "TaskArrays",
    "from_csv",
    "from_parquet",
    "group_classes",
    "load_bakery",
    "load_features",
    "load_lambdarank",
    "load_omniglot",
    "load_pjm",
    "load_tinyimagenet",
    "load_yaz",
    "meta_learning_arrays",
    "split",
]

__getattr__ = at_first_use(  # what needs JAX or SciPy
    __name__,
    {
        "ClientStore": "client_store",
        "TaskArrays": "tasks",
        "group_classes": "grouping",
        "meta_learning_arrays": "tasks",
        "split": "tasks",
    },
)
