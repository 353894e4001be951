"""The same algorithms as people would write them: eager PyTorch, and a native loop in Numba."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)


def numba_epoch_sgd(
    features: np.ndarray, labels: np.ndarray, lam: float, beta0: float, cap: float
) -> Callable[..., Any]:
    """EpochSGD on one task's softmax regression, gradient by hand: the native loop to compare with."""
    import numba

    @numba.njit(fastmath=True)
    def solve(x: np.ndarray, K: int, seed: int) -> np.ndarray:
        np.random.seed(seed)  # noqa: NPY002 (Numba knows no other)
        C, d = x.shape
        y, p = x.copy(), np.empty(C, np.float32)
        for k in range(1, K + 1):
            n = 1 << k
            step, weight = np.float32(min(beta0 / n, cap)), np.float32(1.0 / n)
            mean = np.zeros_like(y)
            for _ in range(n):
                i = np.random.randint(features.shape[0])  # noqa: NPY002
                a, top = features[i], np.float32(-1e30)
                for c in range(C):
                    s = np.float32(0)
                    for j in range(d):
                        s += y[c, j] * a[j]
                    p[c] = s
                    top = max(top, s)
                total = np.float32(0)
                for c in range(C):
                    p[c] = np.exp(p[c] - top)
                    total += p[c]
                for c in range(C):
                    q = p[c] / total - (1 if c == labels[i] else 0)
                    for j in range(d):
                        mean[c, j] += weight * y[c, j]
                        y[c, j] -= step * (q * a[j] + np.float32(lam) * (y[c, j] - x[c, j]))
            y = mean
        return y

    return solve


class EagerTorch:
    """DL-SGD and RT-MLMC by eager autograd, for a problem given as losses and samplers."""

    def __init__(
        self, f: Any, g: Any, context: Any, conditional: Any, init_y: Any, L: float, beta0: float, N: int
    ) -> None:
        self.f, self.g, self.context, self.conditional, self.init_y = f, g, context, conditional, init_y
        self.L, self.N, self.beta0, self.cap = L, N, beta0, 1 / (2 * L)

    def epoch_sgd(self, x: Any, xi: Any, K: int) -> tuple[Any, Any, Any]:
        import torch

        y = first = prev = self.init_y(x, xi)
        for k in range(1, K + 1):
            prev, mean = y, torch.zeros_like(y)
            for _ in range(2**k):
                mean += y / 2**k
                point = y.detach().requires_grad_()
                (grad,) = torch.autograd.grad(self.g(x, point, self.conditional(xi), xi), point)
                y = y - min(self.beta0 / 2**k, self.cap) * grad
            y = mean
        return first, prev, y

    def hypergradient(self, x: Any, y: Any, xi: Any, draws: Any) -> list[Any]:
        """Eq. (6) with the shared draws (eta', eta'', eta_1..eta_n)."""
        import torch

        eta_g, eta_f, etas = draws
        leaves, y = [p.detach().requires_grad_() for p in x], y.detach().requires_grad_()
        *grad_x, r = torch.autograd.grad(self.f(leaves, y, eta_f, xi), [*leaves, y], allow_unused=True)
        for eta in etas:
            (grad,) = torch.autograd.grad(self.g(leaves, y, eta, xi), y, create_graph=True)
            (product,) = torch.autograd.grad(grad, y, r)
            r = r - product / (2 * self.L)
        r = self.N / (2 * self.L) * r
        (grad,) = torch.autograd.grad(self.g(leaves, y, eta_g, xi), y, create_graph=True)
        cross = torch.autograd.grad(grad, leaves, r, allow_unused=True)
        return [(0 if a is None else a) - (0 if b is None else b) for a, b in zip(grad_x, cross, strict=True)]

    def draws(self, xi: Any) -> Any:
        n_hat = RNG.integers(self.N)
        return self.conditional(xi), self.conditional(xi), [self.conditional(xi) for _ in range(n_hat)]

    def dl_sgd(self, x: Any, K: int) -> list[Any]:
        xi = self.context()
        return self.hypergradient(x, self.epoch_sgd(x, xi, K)[2], xi, self.draws(xi))

    def rt_mlmc(self, x: Any, K: int) -> list[Any]:
        xi = self.context()
        p = 2.0 ** -np.arange(1, K + 1)
        p /= p.sum()
        k = 1 + RNG.choice(K, p=p)
        draws = self.draws(xi)
        v = [self.hypergradient(x, y, xi, draws) for y in self.epoch_sgd(x, xi, k)]
        return [a + (c - b) / p[k - 1] for a, b, c in zip(*v, strict=True)]


def torch_meta(app: Any, beta0: float, N: int) -> tuple[EagerTorch, list[Any]]:
    """The meta-learning application in PyTorch."""
    import torch
    from torch.nn import functional

    train, test = app.problem.data
    arrays = [torch.from_numpy(np.asarray(a).copy()) for part in (train, test) for a in (part.features, part.labels)]
    lam = app.problem.mu_g

    def conditional(i: int) -> Any:
        picks = [RNG.integers(arrays[j].shape[1]) for j in (0, 2)]
        return [(arrays[2 * j][i, pick], arrays[2 * j + 1][i, pick].long()) for j, pick in enumerate(picks)]

    def cross_entropy(y: Any, sample: Any) -> Any:
        return functional.cross_entropy((y @ sample[0])[None], sample[1][None])

    (x,) = [torch.from_numpy(np.asarray(leaf).copy()) for leaf in _leaves(app.x1)]
    rival = EagerTorch(
        f=lambda x, y, eta, xi: cross_entropy(y, eta[1]) + 0 * x[0].sum(),
        g=lambda x, y, eta, xi: cross_entropy(y, eta[0]) + lam / 2 * ((y - x[0]) ** 2).sum(),
        context=lambda: RNG.integers(arrays[0].shape[0]),
        conditional=conditional,
        init_y=lambda x, xi: x[0].detach().clone(),
        L=app.problem.L_g1,
        beta0=beta0,
        N=N,
    )
    return rival, [x]


def torch_newsvendor(
    app: Any, widths: tuple[int, ...], lam: float, h: float, b: float, N: int
) -> tuple[EagerTorch, list[Any]]:
    """The WDRO-SI application in PyTorch: softplus network rule, smoothed newsvendor loss."""
    import torch
    from torch.nn import functional

    contexts = torch.from_numpy(np.asarray(app.problem.data.contexts).copy())
    outcomes = torch.from_numpy(np.asarray(app.problem.data.outcomes).copy())
    sizes = [contexts.shape[1], *widths, 1]
    x = [torch.randn(b, a) / a**0.5 for a, b in itertools.pairwise(sizes)]

    def rule(x: Any, u: Any) -> Any:
        for W in x[:-1]:
            u = functional.softplus(W @ u, beta=5)
        return (x[-1] @ u)[0]

    def loss(x: Any, y: Any, eta: Any) -> Any:
        w = rule(x, y)
        return h * functional.softplus(w - eta, beta=5) + b * functional.softplus(eta - w, beta=5)

    g = lambda x, y, eta, xi: lam * ((y - contexts[xi]) ** 2).sum() - loss(x, y, eta)
    rival = EagerTorch(
        f=lambda x, y, eta, xi: -g(x, y, eta, xi),
        g=g,
        context=lambda: RNG.integers(len(contexts)),
        conditional=lambda xi: outcomes[xi, RNG.integers(outcomes.shape[1])],
        init_y=lambda x, xi: contexts[xi].clone(),
        L=app.problem.L_g1,
        beta0=1 / app.problem.mu_g,
        N=N,
    )
    return rival, x


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


def jaxopt_drawn(n: int | str, m: int) -> Any:
    """(key, problem) -> m contexts and their samples, stacked; "all" takes the stored outcomes of a context.

    Where m is a multiple of the number of contexts, each is taken equally often.
    """
    import jax
    import jax.numpy as jnp

    import bilevelax as bx

    def drawn(key: Any, problem: bx.Problem) -> Any:
        mean = problem if n == "all" else problem.averaged(n)
        evenly = problem.n_contexts is not None and m % problem.n_contexts == 0

        def one(key: Any, i: Any) -> Any:
            key_xi, key_eta = jax.random.split(key)
            xi = mean.nth_context(i % problem.n_contexts) if evenly else mean.context(key_xi)
            return xi, problem.outcomes(xi) if n == "all" else mean.conditional(key_eta, xi)

        return jax.vmap(one)(jax.random.split(key, m), jnp.arange(m))

    return drawn


def jaxopt_cost(n: int | str) -> Any:
    """(problem, x, drawn) -> F on these draws, by `vmap` over jaxopt's LBFGS: five lines of a user."""
    import jax
    import jaxopt

    import bilevelax as bx

    def whole(problem: bx.Problem, x: Any, drawn: Any) -> Any:
        mean = problem.weighted() if n == "all" else problem.averaged(n)
        loss = lambda y, x, eta, xi: mean.g(x, y, eta, xi)
        solver = jaxopt.LBFGS(loss, maxiter=50, tol=1e-4, implicit_diff=True)

        def cost(xi: Any, eta: Any) -> Any:
            return mean.f(x, solver.run(mean.start(x, xi), x, eta, xi).params, eta, xi)

        return jax.vmap(cost)(*drawn).mean()

    return whole


def jaxopt_average(n: int | str, m: int) -> Any:
    """The gradient of `jaxopt_cost` by implicit differentiation, as an estimator."""
    import jax

    import bilevelax as bx

    draw, whole = jaxopt_drawn(n, m), jaxopt_cost(n)

    def estimate(key: Any, problem: bx.Problem, x: Any) -> bx.Estimate:
        grad = jax.grad(whole, argnums=1)(problem, x, draw(key, problem))
        rows = len(jax.eval_shape(lambda: problem.outcomes(problem.context(key)))[1]) if n == "all" else n
        return bx.Estimate(grad, bx.Cost(xi=m, eta=m * rows), {})

    return bx.stateless(estimate)
