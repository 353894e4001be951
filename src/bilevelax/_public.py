"""The public names and where they live. `bilevelax/__init__.py` gives them out, at first use.

``import name as name`` says to type checkers that the name is meant for others.
"""

from bilevelax.base.cache import cache as cache
from bilevelax.base.errors import RunStopped as RunStopped
from bilevelax.core.estimate import Cost as Cost
from bilevelax.core.estimate import Estimate as Estimate
from bilevelax.core.estimate import Estimator as Estimator
from bilevelax.core.estimate import stateless as stateless
from bilevelax.core.hypergradient import hypergradient as hypergradient
from bilevelax.core.inverse import neumann as neumann
from bilevelax.core.inverse import none as none
from bilevelax.core.lower import Iterates as Iterates
from bilevelax.core.lower import LowerSolver as LowerSolver
from bilevelax.core.lower import epoch_sgd as epoch_sgd
from bilevelax.core.lower import sgd as sgd
from bilevelax.core.minibatch import minibatch as minibatch
from bilevelax.core.problem import Problem as Problem
from bilevelax.diagnostics.certify import Certificate as Certificate
from bilevelax.diagnostics.certify import certified as certified
from bilevelax.diagnostics.certify import certify as certify
from bilevelax.diagnostics.check import check as check
from bilevelax.diagnostics.check_report import Report as Report
from bilevelax.diagnostics.constants import Constants as Constants
from bilevelax.diagnostics.constants import constants as constants
from bilevelax.diagnostics.correction_rate import correction_rate as correction_rate
from bilevelax.diagnostics.tune import Tuned as Tuned
from bilevelax.diagnostics.tune import tune as tune
from bilevelax.estimators.amortised import amortised as amortised
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc as antithetic_mlmc
from bilevelax.estimators.bsvrb import bsvrb as bsvrb
from bilevelax.estimators.dl_sgd import dl_sgd as dl_sgd
from bilevelax.estimators.envelope import envelope as envelope
from bilevelax.estimators.imaml import imaml as imaml
from bilevelax.estimators.maml import maml as maml
from bilevelax.estimators.rt_mlmc import rt_mlmc as rt_mlmc
from bilevelax.estimators.saa import saa as saa
from bilevelax.estimators.single_loop import single_loop as single_loop
from bilevelax.exact.constraints.polyhedron import polyhedron as polyhedron
from bilevelax.exact.constraints.product import product as product
from bilevelax.exact.constraints.sets import affine as affine
from bilevelax.exact.constraints.sets import ball as ball
from bilevelax.exact.constraints.sets import box as box
from bilevelax.exact.constraints.sets import nonnegative as nonnegative
from bilevelax.exact.constraints.sets import simplex as simplex
from bilevelax.exact.curvature import Curvature as Curvature
from bilevelax.exact.curvature import curvature as curvature
from bilevelax.exact.evaluate import Evaluation as Evaluation
from bilevelax.exact.evaluate import evaluate as evaluate
from bilevelax.exact.inverse import conjugate_gradient as conjugate_gradient
from bilevelax.exact.inverse import dense as dense
from bilevelax.exact.inverse import summed_neumann as summed_neumann
from bilevelax.exact.respond import respond as respond
from bilevelax.exact.sample_average import newton_solver as newton_solver
from bilevelax.exact.warm_start import (
    warm_regression as warm_regression,
)
from bilevelax.exact.warm_start import (
    warm_started as warm_started,
)
from bilevelax.exact.warm_start import (
    warm_table as warm_table,
)
from bilevelax.problems.bases import Basis as Basis
from bilevelax.problems.bases import chebyshev as chebyshev
from bilevelax.problems.bases import fourier as fourier
from bilevelax.problems.bases import random_features as random_features
from bilevelax.problems.bases import splines as splines
from bilevelax.problems.clients import Client as Client
from bilevelax.problems.clients import from_clients as from_clients
from bilevelax.problems.joint import from_joint as from_joint
from bilevelax.problems.lower import averaged_step as averaged_step
from bilevelax.problems.lower import frozen as frozen
from bilevelax.problems.lower import optax_steps as optax_steps
from bilevelax.problems.reduced import answers as answers
from bilevelax.problems.reduced import reduced as reduced
from bilevelax.problems.smooth import smooth_products as smooth_products
from bilevelax.problems.special_cases import (
    conditional_stochastic as conditional_stochastic,
)
from bilevelax.problems.special_cases import (
    stochastic as stochastic,
)
from bilevelax.problems.special_cases import (
    stochastic_bilevel as stochastic_bilevel,
)
from bilevelax.problems.splits import from_splits as from_splits
from bilevelax.problems.stored import from_arrays as from_arrays
from bilevelax.run.minimize import minimize as minimize
from bilevelax.run.projected import projected as projected
from bilevelax.run.records.checkpoint import Checkpoint as Checkpoint
from bilevelax.run.records.history import append_to as append_to
from bilevelax.run.records.result import Result as Result
from bilevelax.run.records.solved import Solved as Solved
from bilevelax.run.records.solved import Stage as Stage
from bilevelax.run.schedules import sqrt_then_linear as sqrt_then_linear
from bilevelax.run.solve import solve as solve
