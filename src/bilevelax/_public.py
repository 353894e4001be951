"""The public names and where they live. `bilevelax/__init__.py` gives them out, at first use.

``import name as name`` says to type checkers that the name is meant for others.
"""

from bilevelax.checkpoint import Checkpoint as Checkpoint
from bilevelax.clients import Client as Client
from bilevelax.clients import from_clients as from_clients
from bilevelax.constraints import projected as projected
from bilevelax.curvature import Curvature as Curvature
from bilevelax.curvature import curvature as curvature
from bilevelax.diagnostics.certify import Certificate as Certificate
from bilevelax.diagnostics.certify import certified as certified
from bilevelax.diagnostics.certify import certify as certify
from bilevelax.diagnostics.check import Report as Report
from bilevelax.diagnostics.check import check as check
from bilevelax.diagnostics.constants import Constants as Constants
from bilevelax.diagnostics.constants import constants as constants
from bilevelax.diagnostics.levels import correction_rate as correction_rate
from bilevelax.diagnostics.tune import Tuned as Tuned
from bilevelax.diagnostics.tune import tune as tune
from bilevelax.errors import RunStopped as RunStopped
from bilevelax.estimate import Cost as Cost
from bilevelax.estimate import Estimate as Estimate
from bilevelax.estimate import Estimator as Estimator
from bilevelax.estimate import stateless as stateless
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc as antithetic_mlmc
from bilevelax.estimators.bsvrb import bsvrb as bsvrb
from bilevelax.estimators.dl_sgd import dl_sgd as dl_sgd
from bilevelax.estimators.imaml import imaml as imaml
from bilevelax.estimators.maml import maml as maml
from bilevelax.estimators.rt_mlmc import rt_mlmc as rt_mlmc
from bilevelax.estimators.saa import saa as saa
from bilevelax.estimators.single_loop import single_loop as single_loop
from bilevelax.history import append_to as append_to
from bilevelax.hypergradient import hypergradient as hypergradient
from bilevelax.inverse import (
    conjugate_gradient as conjugate_gradient,
)
from bilevelax.inverse import (
    dense as dense,
)
from bilevelax.inverse import (
    neumann as neumann,
)
from bilevelax.inverse import (
    none as none,
)
from bilevelax.inverse import (
    summed_neumann as summed_neumann,
)
from bilevelax.lower import (
    Iterates as Iterates,
)
from bilevelax.lower import (
    LowerSolver as LowerSolver,
)
from bilevelax.lower import (
    averaged_step as averaged_step,
)
from bilevelax.lower import (
    epoch_sgd as epoch_sgd,
)
from bilevelax.lower import (
    frozen as frozen,
)
from bilevelax.lower import (
    optax_steps as optax_steps,
)
from bilevelax.lower import (
    sgd as sgd,
)
from bilevelax.minibatch import minibatch as minibatch
from bilevelax.outer import minimize as minimize
from bilevelax.problem import Problem as Problem
from bilevelax.respond import Evaluation as Evaluation
from bilevelax.respond import evaluate as evaluate
from bilevelax.respond import respond as respond
from bilevelax.result import Result as Result
from bilevelax.schedules import sqrt_then_linear as sqrt_then_linear
from bilevelax.special_cases import (
    conditional_stochastic as conditional_stochastic,
)
from bilevelax.special_cases import (
    stochastic as stochastic,
)
from bilevelax.special_cases import (
    stochastic_bilevel as stochastic_bilevel,
)
from bilevelax.stored import from_arrays as from_arrays
from bilevelax.warm_start import (
    warm_regression as warm_regression,
)
from bilevelax.warm_start import (
    warm_started as warm_started,
)
from bilevelax.warm_start import (
    warm_table as warm_table,
)
