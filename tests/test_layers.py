"""The import law, and what importing the package may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "bilevelax"
# What each part may import when it is itself imported, beside itself. Nothing imports cli or bilevelax_paper.
LAW = {
    "core": set(),
    "exact": {"core", "problems"},
    "problems": {"core"},
    "run.records": {"core", "problems"},
    "estimators": {"core", "exact", "problems", "discovery"},
    # `solve` needs these; what `minimize` may is below
    "run": {"core", "exact", "problems", "run.records", "diagnostics", "estimators"},
    "diagnostics": {"core", "exact", "problems", "estimators", "run.records"},
    "applications": {"core", "exact", "problems", "discovery"},
    "datasets": {"core", "problems", "run.records"},
    "tables": {"core", "datasets"},
    "report": {"core", "run.records"},
    "sklearn": {"core", "exact", "problems", "estimators", "run", "applications", "datasets", "report", "tables"}
    | {"run.records"},
    "testing": {"core", "exact", "problems"},
    "base": set(),
    "discovery": set(),
}
GROUND = {"base", "_xla", "_version"}  # what everything stands on
EVERYTHING = ("_public", "cli", "__main__", "paper")  # may import any part; cli and paper are imported by none


def module_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def part_of(module):
    """The part of the tree that a module belongs to."""
    head, *rest = module.split(".")
    if head == "bilevelax_paper":
        return "paper"
    return "run.records" if rest[:2] == ["run", "records"] else rest[0] if rest else "_public"


def imports(path, *, lazy=True):
    """Modules of ours that a file imports (not for typing alone); ``lazy``: inside functions too."""
    source = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(source)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(source) if lazy else source.body:
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only and node.module:
            for name in node.names:
                if node.module.split(".")[0] in ("bilevelax", "bilevelax_paper"):
                    whole = f"{node.module}.{name.name}"
                    yield whole if whole in FILES else node.module


@pytest.mark.parametrize("module", [name for name in FILES if name != "bilevelax"])
def test_imports_go_downwards(module):
    part = part_of(module)
    assert part in LAW or part in EVERYTHING or part in GROUND, f"give {part} a place in the law"
    for other in imports(FILES[module], lazy=False):
        there, may = part_of(other), LAW.get(part, set()) | GROUND
        assert there not in ("cli", "paper") or there == part or part in ("paper", "__main__"), f"{module}: {other}"
        assert part in EVERYTHING or there == part or there in may, f"{module} imports {other}"


def test_no_file_imports_itself_through_others():
    graph = {module: set(imports(path, lazy=False)) - {"bilevelax"} for module, path in FILES.items()}
    while leaves := {module for module, needs in graph.items() if not needs & graph.keys()}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph, f"these import each other: {sorted(graph)}"


def test_the_core_can_be_read_in_one_go():
    """What a problem, a draw, a level and an estimator are, with both estimators of the paper and a step of theirs."""
    paper = [PACKAGE / "estimators" / f"{name}.py" for name in ("dl_sgd", "rt_mlmc")]
    files = [*(PACKAGE / "core").glob("*.py"), *paper, PACKAGE / "run" / "steps.py"]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 1500


STUDY = 6_100 * 2 // 3  # lines: two thirds of what it had, with words and settings in files of their own


def test_the_study_is_small():
    """What is about the paper alone; statistics, records, figures and timings are the library's."""
    lines = {path.name: len(path.read_text().splitlines()) for path in (SOURCE / "bilevelax_paper").rglob("*.py")}
    assert sum(lines.values()) <= STUDY, lines


def test_applications_never_import_estimators():
    for path in (PACKAGE / "applications").rglob("*.py"):
        assert not {"estimators", "run"} & {part_of(other) for other in imports(path)}, path.name


CORE = [*(PACKAGE / "core").glob("*.py"), *(PACKAGE / "exact").glob("*.py"), *(PACKAGE / "run").glob("*.py")]


def test_only_problem_differentiates():
    """jax.grad and the like appear in problem.py alone; exceptions: maml, which unrolls, and the self-test."""
    derivatives = {"grad", "value_and_grad", "jvp", "vjp", "jacobian", "jacfwd", "jacrev", "hessian", "linearize"}
    for path in [*CORE, *(PACKAGE / "estimators").glob("*.py")]:
        used = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("jax", "eqx")
        }
        assert path.name in ("problem.py", "maml.py", "self_test.py") or not used & derivatives, path.name


def test_keys_have_no_defaults():
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
                keyword = [a for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
                assert "key" not in {a.arg for a in (*arguments, *keyword)}, f"{path.name}: {node.name}"


LONGEST = 60  # lines of a function, its docstring left out


@pytest.mark.parametrize("module", FILES)
def test_functions_are_short(module):
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.FunctionDef):
            told = node.body[0] if ast.get_docstring(node) else None
            lines = node.end_lineno - node.lineno + 1 - (told.end_lineno - told.lineno + 1 if told else 0)
            assert lines <= LONGEST, f"{module}.{node.name} has {lines} lines"


def test_import_allocates_nothing_and_needs_only_the_core():
    code = """
import sys, bilevelax
assert "jax" not in sys.modules, "the command line would wait for it"
bilevelax.minimize
import jax
assert not jax.live_arrays(), "importing allocated an array"
heavy = {"rich", "typer", "matplotlib", "sklearn", "scipy.stats", "pandas", "torch", "orbax", "lineax", "optimistix"}
heavy |= {"scipy.optimize", "scipy.spatial", "scipy.special"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def closure(module):
    """A module and all of ours that are imported with it, packages' own files apart."""
    found, left = set(), {module}
    while left:
        found |= left
        left = {other for one in left for other in imports(FILES[one], lazy=False)} - found
    return {one for one in found if FILES[one].name != "__init__.py"}


def test_minimize_is_small():
    found = closure("bilevelax.run.minimize")
    lines = sum(len(FILES[module].read_text().splitlines()) for module in found)
    assert len(found) <= 15 and lines <= 1500, f"{len(found)} modules, {lines} lines: {sorted(found)}"


def test_a_plain_run_imports_only_what_it_uses():
    code = """
import sys
import jax, jax.numpy as jnp, optax
from bilevelax.core.estimate import Cost, Estimate, stateless
from bilevelax.core.problem import Problem
from bilevelax.run.minimize import minimize
square = lambda x, y, eta, xi: jnp.sum((x - y) ** 2)
draw = lambda key, *rest: jnp.zeros(())
problem = Problem(f=square, g=square, sample_context=draw, sample_conditional=draw, init_y=lambda x, xi: jnp.zeros(2))
exact = stateless(lambda key, problem, x: Estimate(2 * x, Cost(), {}))
result = minimize(problem, exact, optax.sgd(0.25), jnp.ones(2), key=jax.random.key(0), T=3, every=2, progress=False)
assert jnp.allclose(result.x, 0.125) and len(result.history) == 3
unused = {"diagnostics", "exact", "feed", "clients", "stored", "devices", "checkpoint", "fingerprint", "run_folder"}
unused.add("progress")
found = {part for name in sys.modules if name.startswith("bilevelax") for part in name.split(".")} & unused
assert not found, found
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


def test_public_names_hide_no_part_of_the_package():
    """No file or folder has a public name, so whatever is imported first, `bilevelax.minibatch` is the function."""
    import bilevelax

    parts = {path.stem for path in PACKAGE.iterdir()}
    assert not parts & set(bilevelax.__all__)
