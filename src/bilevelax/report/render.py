"""The page: tables written here, curves drawn by the page's own script from the JSON beside them."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bilevelax._version import __version__
from bilevelax.report import page_tables
from bilevelax.report.compare import AXES, CERTIFICATE, COUNTS, DIAGNOSTICS, Group, metrics_of

PAGE_FOLDER = Path(__file__).parent / "page"
LABELS = {
    "t": "iterations",
    "seconds": "seconds",
    "xi": "contexts drawn",
    "eta": "samples drawn",
    "grad_f": "gradients of f",
    "grad_g": "gradients of g",
    "hess_g": "Hessian products of g",
    "cross_g": "cross products of g",
    "bias": "relative bias",
    "variance": "variance of one call",
    "call_seconds": "seconds of one call",
    "grad2": "|grad F(x)|²",
}


def render(groups: list[Group], title: str) -> str:
    """The whole page as text. Everything that comes from a run is escaped, here or by the script."""
    return filled(
        "page.html",
        title=title,
        groups=groups,
        runs=sum(len(group.records) for group in groups),
        diagnostics=_recorded(groups, DIAGNOSTICS),
        certificate=_recorded(groups, CERTIFICATE),
        tables=page_tables.all_tables(groups, metrics_of(groups)),
        data=embedded(payload(groups)),
        **scripts("parts.js", "chart.js", "page.js"),
    )


def scripts(*names: str) -> dict[str, Any]:
    """The script of a page from these files, and the hash by which the page allows it and no other."""
    script = "".join((PAGE_FOLDER / name).read_text(encoding="utf-8") for name in names)
    digest = hashlib.sha256(script.encode()).digest()
    return {"script": Markup(script), "script_hash": base64.b64encode(digest).decode()}


def filled(template: str, **values: Any) -> str:
    """A template of the folder ``page`` with these values, all escaped, and what every page has."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        style=Markup((PAGE_FOLDER / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **values,
    )


def payload(groups: list[Group]) -> dict[str, Any]:
    """What the script draws."""
    counts = [name for name in COUNTS if any(any(group.mean.get(name, ())) for group in groups)]
    return {
        "axes": [name for name in AXES if name not in COUNTS],
        "counts": counts,
        "metrics": metrics_of(groups),
        "labels": LABELS,
        "groups": [
            {
                "name": group.name,
                "runs": len(group.records),
                "mean": group.mean,
                "low": group.low,
                "high": group.high,
                "levels": group.levels,
            }
            for group in groups
        ],
    }


def embedded(value: Any) -> Markup:
    """JSON that may stand inside a script element: no character in it can end the element or open a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and the like are escaped
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _recorded(groups: list[Group], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if any(name in group.mean for group in groups)]
