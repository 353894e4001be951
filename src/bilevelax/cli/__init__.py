"""The command line: ``bilevelax --help``. A file here that describes ``bilevelax NAME`` is the command NAME."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevelax._version import __version__
from bilevelax.cli._terminal import complain
from bilevelax.discovery import first_line

ABOUT = "Contextual stochastic bilevel optimization."
START = (  # three users, and where each begins
    (
        "Bilevel optimization: your f, g and two samplers",
        ("demo", "two estimators on a problem with a known solution, in a minute"),
        ("run quadratic", "minimise an application; `bilevelax list` names them all"),
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

app = typer.Typer(help=ABOUT, pretty_exceptions_enable=False, add_completion=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bilevelax {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Contextual stochastic bilevel optimization. Without a command: where to start."""
    if context.invoked_subcommand is None:
        typer.echo(welcome())


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
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        line = re.match(r"``bilevelax (\w+)[^`]*``: (.+)", first_line(path))
        if line:
            found[line[1]] = (path.stem, line[2][0].upper() + line[2][1:])
    return found


def load(name: str) -> Any:
    """The command of a module: its ``app``, or the function that has the module's name."""
    stem, _ = COMMANDS[name]
    module = importlib.import_module(f"bilevelax.cli.{stem}")
    made = getattr(module, "app", None)
    if made is None:
        made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        made.command(name)(getattr(module, stem))
    return typer.main.get_command(made)


def register(name: str, text: str) -> None:
    """Add a command that is imported when it is called: nobody waits for what others need."""

    def forward(context: typer.Context) -> None:
        code = load(name).main(context.args, prog_name=f"bilevelax {name}", standalone_mode=False)
        if isinstance(code, int) and code:
            raise typer.Exit(code)

    anything = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=text, add_help_option=False, context_settings=anything)(forward)


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
        sentence = error.format_message().rstrip(".")
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
