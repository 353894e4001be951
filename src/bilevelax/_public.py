"""The public names and where they live. `bilevelax/__init__.py` gives them out, at first use."""

# ruff: noqa: F401
from bilevelax.checkpoint import Checkpoint
from bilevelax.clients import Client, from_clients
from bilevelax.constraints import projected
from bilevelax.curvature import Curvature, curvature
from bilevelax.diagnostics.certify import Certificate, certified, certify
from bilevelax.diagnostics.check import Report, check
from bilevelax.diagnostics.constants import Constants, constants
from bilevelax.diagnostics.levels import correction_rate
from bilevelax.diagnostics.tune import Tuned, tune
from bilevelax.errors import RunStopped
from bilevelax.estimate import Cost, Estimate, Estimator, stateless
from bilevelax.estimators.antithetic_mlmc import antithetic_mlmc
from bilevelax.estimators.bsvrb import bsvrb
from bilevelax.estimators.dl_sgd import dl_sgd
from bilevelax.estimators.imaml import imaml
from bilevelax.estimators.maml import maml
from bilevelax.estimators.rt_mlmc import rt_mlmc
from bilevelax.estimators.saa import saa
from bilevelax.estimators.single_loop import single_loop
from bilevelax.history import append_to
from bilevelax.hypergradient import hypergradient
from bilevelax.inverse import conjugate_gradient, dense, neumann, none, summed_neumann
from bilevelax.lower import Iterates, LowerSolver, averaged_step, epoch_sgd, frozen, optax_steps, sgd
from bilevelax.minibatch import minibatch
from bilevelax.outer import minimize
from bilevelax.problem import Problem
from bilevelax.respond import Evaluation, evaluate, respond
from bilevelax.result import Result
from bilevelax.schedules import sqrt_then_linear
from bilevelax.special_cases import conditional_stochastic, stochastic, stochastic_bilevel
from bilevelax.stored import from_arrays
from bilevelax.warm_start import warm_regression, warm_started, warm_table
