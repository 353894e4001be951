"""The command line: ``bilevelax --help``. A file here that describes ``bilevelax NAME`` is the command NAME."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevelax._version import __version__
from bilevelax.cli._terminal import complain
from bilevelax.cli._unsupported import instead_of

ABOUT = "Contextual stochastic bilevel optimization."
START = (  # three users, and where each begins
    (
        "Bilevel optimization: your f, g and two samplers",
        ("demo", "two estimators on a problem with a known solution, in a minute"),
        ("solve personalized_fl", "a certified answer without settings; `bilevelax list` names more"),
        ("run quadratic", "the same by an estimator and an optimizer of your choice"),
        ("check module:attribute", "is your own problem right, and its gradient?"),
        ("report runs", "one page that compares what was run"),
    ),
    (
        "Order quantities from past days, weather and calendar",
        ("newsvendor example", "all three steps below, on the past days of a restaurant"),
        ("newsvendor fit", "learn a robust rule from a table of past days"),
        ("newsvendor order", "what to order on new days"),
        ("newsvendor evaluate", "what it would have cost, against simple rules"),
    ),
    (
        "Meta-learning and federated learning with many tasks or clients",
        ("features FOLDER OUT.npz", "features of a folder of images"),
        ("run meta_learning", "learn an initialisation for all tasks"),
        ("paper --list", "the paper's tables and figures, made again"),
    ),
)

# plain words: what draws frames around them takes as long to import as everything else here
app = typer.Typer(help=ABOUT, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: what it stands on, and the cache of compiled programs.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Contextual stochastic bilevel optimization. Without a command: where to start."""
    if version:
        typer.echo("\n".join(facts()) if verbose else f"bilevelax {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(welcome())


def facts() -> list[str]:
    """What a report of a mistake should begin with."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from bilevelax.base import cache

    lines = [f"bilevelax {__version__}", f"Python {platform.python_version()}, {platform.platform()}"]
    for package in ("jax", "jaxlib", "numpy", "optax", "equinox", "scikit-learn", "orbax-checkpoint"):
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{package} {version(package)}")
    return [*lines, f"Cache of compiled programs: {cache.state()}"]


def welcome() -> str:
    """Where each kind of user starts; lines of commands that this installation lacks are left out."""
    lines = [f"bilevelax {__version__}. {ABOUT}"]
    for title, *steps in START:
        known = [(f"bilevelax {words}", text) for words, text in steps if words.split()[0] in COMMANDS]
        if known:
            lines += ["", title, *(f"  {words:<36}{text}" for words, text in known)]
    return "\n".join([*lines, "", "All commands: bilevelax --help"])


def find_commands() -> dict[str, tuple[str, str]]:
    """{name: (module, help)} of the files whose first line reads ``bilevelax NAME ...``: help."""
    found = {}
    for package, folder in folders():
        for path in sorted(folder.glob("[a-z]*.py")):
            with path.open(encoding="utf-8") as file:
                line = re.match(r'"{3}``bilevelax (\w+)[^`]*``: ([^"\n]+)', file.readline())
            if line:
                found[line[1]] = (f"{package}.{path.stem}", line[2][0].upper() + line[2][1:])
    return dict(sorted(found.items()))


def folders() -> Iterator[tuple[str, Path]]:
    """Where commands lie: here, and in the study of the paper, which is a package of its own."""
    yield __name__, Path(__file__).parent
    study = importlib.util.find_spec("bilevelax_paper")
    if study is not None:
        yield from ((study.name, Path(place)) for place in study.submodule_search_locations or ())


def load(name: str) -> Any:
    """The command of a module: its ``app``, or the function that has the module's name."""
    path, _ = COMMANDS[name]
    module = importlib.import_module(path)
    made = getattr(module, "app", None)
    if made is None:
        made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        made.command(name)(getattr(module, name if hasattr(module, name) else path.rpartition(".")[2]))
    return typer.main.get_command(made)


def register(name: str, text: str) -> None:
    """Add a command that is imported when it is called: nobody waits for what others need."""

    def forward(context: typer.Context) -> None:
        code = load(name).main(context.args, prog_name=f"bilevelax {name}", standalone_mode=False)
        if isinstance(code, int) and code:
            raise typer.Exit(code)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=text, short_help=text, add_help_option=False, context_settings=anything)(forward)


COMMANDS = find_commands()
for _name, (_, _text) in COMMANDS.items():
    register(_name, _text)

MISUSE: Any = typer.BadParameter.__mro__[2]  # ClickException, wherever this version of typer keeps it


def main() -> None:
    """Errors are one sentence on standard error and a next step; ``--debug``, anywhere, shows where they came from."""
    words = [word for word in sys.argv[1:] if word != "--debug"]
    try:
        code = app(words, prog_name="bilevelax", standalone_mode=False)
    except typer.Abort:
        code = 130
    except Exception as error:
        if len(words) < len(sys.argv) - 1:
            raise
        code = explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def explain(error: Exception) -> int:
    """Say what went wrong and what to do; the exit code."""
    if isinstance(error, MISUSE):
        command = error.ctx.command_path if getattr(error, "ctx", None) else "bilevelax"
        instead = instead_of(error) if "newsvendor" in command else None
        sentence = (instead or error.format_message()).rstrip(".")
        complain(f"{sentence}{'' if sentence.endswith('?') else '.'} See: {command} --help")
        return 2
    if isinstance(error, ModuleNotFoundError):
        complain(f"{error}. Install what this command needs: pip install 'bilevelax[all]'.")
    elif isinstance(error, OSError) and error.filename:
        complain(f"{error.strerror}: {str(error.filename)!r}. Name another place, or see whether it may be written.")
    elif hasattr(error, "advice"):  # RunStopped: what it holds is out of reach here
        complain(str(error).removesuffix(f" {error.advice}"))
    elif isinstance(error, ValueError | AssertionError | OSError | ImportError):
        complain(str(error) or type(error).__name__)
    else:
        complain(f"{type(error).__name__}: {error}. This was not foreseen: `--debug` shows where it happened.")
    return 1
