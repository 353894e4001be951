"""The import law, and what importing the package may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "bilevelax"
# A file may import from strictly lower layers, or from its own.
LAYERS = [
    {"_version", "problem"},
    {"trees", "errors", "validate", "estimate", "feed", "history", "progress", "discovery", "plots", "compiling"},
    {"checkpoint", "fingerprint", "result", "journal", "run_folder", "signals"},
    {"lower", "newton", "inverse", "sample_average", "draws", "curvature", "constraints", "schedules"},
    {"hypergradient", "special_cases", "stored", "clients", "respond"},
    {"estimators", "minibatch", "spread", "devices", "steps", "warm_start", "testing"},
    {"diagnostics"},
    {"outer", "run"},
    {"sweep", "_public"},
    {"applications", "datasets"},
    {"sklearn", "report"},
    {"experiments"},
    {"cli", "__main__"},
]
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def part_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def runtime_imports(path):
    """Parts of bilevelax that a file imports when it runs (not under TYPE_CHECKING)."""
    source = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(source)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only and node.module:
            head, _, rest = node.module.partition(".")
            if head == "bilevelax":
                names = [rest.split(".")[0]] if rest else [alias.name for alias in node.names]
                yield from (name if name in DEPTH else "_public" for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    assert part_of(path) in DEPTH, f"give {part_of(path)} a layer"
    for name in runtime_imports(path):
        assert DEPTH[name] <= DEPTH[part_of(path)], f"{path.name} imports {name}, which is above it"


def test_applications_never_import_estimators():
    for path in (PACKAGE / "applications").glob("*.py"):
        assert not {"estimators", "minibatch", "outer"} & set(runtime_imports(path)), path.name


CORE = [
    "problem",
    "estimate",
    "lower",
    "inverse",
    "hypergradient",
    "newton",
    "sample_average",
    "draws",
    "minibatch",
    "steps",
    "run",
    "outer",
    "respond",
]


def test_only_problem_differentiates():
    """jax.grad and the like appear in problem.py alone; maml, which unrolls, is the declared exception."""
    derivatives = {"grad", "value_and_grad", "jvp", "vjp", "jacobian", "jacfwd", "jacrev", "hessian", "linearize"}
    for path in [*(PACKAGE / f"{name}.py" for name in CORE), *(PACKAGE / "estimators").glob("*.py")]:
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("jax", "eqx")
        }
        assert path.name in ("problem.py", "maml.py") or not used & derivatives, path.name


def test_keys_have_no_defaults():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
                keyword = [a for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
                assert "key" not in {a.arg for a in (*arguments, *keyword)}, f"{path.name}: {node.name}"


def test_import_allocates_nothing_and_needs_only_the_core():
    code = """
import sys, bilevelax
assert "jax" not in sys.modules, "the command line would wait for it"
bilevelax.minimize
import jax
assert not jax.live_arrays(), "importing allocated an array"
heavy = {"rich", "typer", "matplotlib", "sklearn", "scipy.stats", "pandas", "torch", "orbax", "lineax", "optimistix"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_public_names_are_sorted_and_exist():
    import bilevelax
    from bilevelax import _public

    assert bilevelax.__all__ == sorted(bilevelax.__all__)
    imported = {name for name, value in vars(_public).items() if not name.startswith("_")}
    assert imported == set(bilevelax.__all__) - {"__version__"}
    assert set(bilevelax.__all__) <= set(dir(bilevelax))
    aliases = [
        a for node in ast.walk(ast.parse((PACKAGE / "_public.py").read_text())) for a in getattr(node, "names", ())
    ]
    assert all(alias.asname == alias.name for alias in aliases)  # else `mypy --strict` does not see them
    with pytest.raises(AttributeError, match="module 'bilevelax' has no attribute 'nothing'"):
        _ = bilevelax.nothing


def test_public_names_are_not_hidden_by_files_of_the_same_name():
    """Whatever is imported first, `bilevelax.minibatch` is the function."""
    code = """
import bilevelax.minibatch, bilevelax.respond
from bilevelax.testing import check_problem  # imports many files
import bilevelax
files = {path.stem for path in __import__("pathlib").Path(bilevelax.__file__).parent.glob("*.py")}
same = files & set(bilevelax.__all__)
assert {"minibatch", "hypergradient"} <= same and all(callable(getattr(bilevelax, name)) for name in same), same
from bilevelax import *
assert callable(curvature) and callable(minimize)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
