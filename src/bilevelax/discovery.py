"""One file is one part: what is in a package folder is what there is to choose from."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import Any, NamedTuple


class Catalogue(NamedTuple):
    """The parts of a package, one file each; ``factory`` names what to take from each. A folder is no part."""

    package: str
    kind: str
    factory: str | None = None  # None: the function of the module's own name

    def names(self) -> list[str]:
        path = importlib.import_module(self.package).__path__
        return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_") and not m.ispkg)

    def load(self, name: str) -> Any:
        """The factory of the named part."""
        return getattr(self.module(name), self.factory or name)

    def summary(self, name: str) -> str:
        """First line of the part's own description."""
        self.require(name)
        found = importlib.util.find_spec(f"{self.package}.{name}")
        assert found is not None and found.origin is not None
        return first_line(Path(found.origin))

    def smallest(self, name: str) -> Any:
        """The named part made as small as makes sense, by the settings ``SMALLEST`` of its module if it has them."""
        return self.load(name)(**getattr(self.module(name), "SMALLEST", {}))

    def module(self, name: str) -> Any:
        self.require(name)
        return importlib.import_module(f"{self.package}.{name}")

    def require(self, name: str) -> None:
        if name not in self.names():
            raise ValueError(f"There is no {self.kind} {name!r}. Choose from: {', '.join(self.names())}.")


def first_line(path: Path) -> str:
    """Of a file's own description, read without running the file."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0] if text else ""
