"""What a wrong order costs: ``--holding``, ``--backlog`` and ``--service-level``, for all products or for each."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, NamedTuple

from bilevelax.tables.series import BETWEEN, COSTS


class Range(NamedTuple):
    """What an option's numbers may be."""

    most: float
    words: str
    example: str


COST, SHARE = Range(math.inf, "a positive number", "9"), Range(1.0, "between 0 and 1, such as .95", ".95")
OTHERS = "others"  # the products that an option does not name


def number_option(name: str, value: float, kind: Range) -> float:
    if not (math.isfinite(value) and 0 < value < kind.most):
        raise ValueError(f"`--{name}` must be {kind.words}. Got {value:g}.")
    return value


def numbers_option(name: str, words: str, products: list[str], kind: Range = COST) -> Any:
    """A number, or a list with one for each product from ``steak=9,fish=5``."""
    if "=" in words:
        found = named_numbers(name, words, kind)
        return [number_of(name, product, found, products) for product in require_known(name, found, products)]
    try:
        value = float(words)
    except ValueError:
        each = f"one for each product such as steak={kind.example},fish={kind.example}"
        raise ValueError(f"`--{name}` must be {kind.words}, or {each}. Got {words!r}.") from None
    return number_option(name, value, kind)


def named_numbers(name: str, words: str, kind: Range) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in words.split(","):
        product, _, value = part.rpartition("=")
        try:
            number = number_option(name, float(value), kind)
        except ValueError:
            raise ValueError(f"`--{name}` must give each product {kind.words}. Got {part.strip()!r}.") from None
        if found.setdefault(product.strip(), number) != number:
            raise ValueError(f"`--{name}` gives {product.strip()!r} two numbers. Give one of them.")
    return found


def names_for(product: str) -> list[str]:
    """What a product may be called: its whole name, or in a long table one of the ids that make it."""
    return list(dict.fromkeys([product, *product.split(BETWEEN)]))


def require_known(name: str, found: dict[str, float], products: list[str]) -> list[str]:
    """The products, where every name of the option is one of theirs."""
    known = {each for product in products for each in names_for(product)}
    odd = [each for each in found if each not in known and each != OTHERS]
    if odd:
        raise ValueError(f"`--{name}` names {odd[0]!r}, which is none of the products {few(products)}.")
    return products


def number_of(name: str, product: str, found: dict[str, float], products: list[str]) -> float:
    if product in found:
        return found[product]
    own = [each for each in names_for(product) if each in found]
    if len({found[each] for each in own}) > 1:
        raise ValueError(
            f"`--{name}` has two numbers for the product {product!r}, by {own[0]!r} and by {own[1]!r}. "
            f"Give one for {product!r}."
        )
    if not own and OTHERS not in found:
        raise ValueError(
            f"`--{name}` must have one number for each of {few(products)}; it has none for {product!r}. "
            f"Add it, or {OTHERS}=... for all the rest."
        )
    return found[own[0] if own else OTHERS]


def few(products: list[str]) -> str:
    return ", ".join(products[:5]) + (f" and {len(products) - 5} more" if len(products) > 5 else "")


class Prices(NamedTuple):
    """The options that say what a wrong order costs."""

    holding: str = "1"
    backlog: str | None = None
    service_level: str | None = None

    def checked(self) -> Prices:
        """What is wrong whatever the products are is told before a file is read."""
        if self.service_level is not None and self.backlog is not None:
            raise ValueError("`--service-level` and `--backlog` say the same thing: give one of them.")
        for name, words, kind in (
            ("holding", self.holding, COST),
            ("backlog", self.backlog, COST),
            ("service-level", self.service_level, SHARE),
        ):
            if words is not None:
                named_numbers(name, words, kind) if "=" in words else numbers_option(name, words, [], kind)
        return self

    def of(self, products: list[str]) -> dict[str, Any]:
        """Each cost: a number, or a list with one for each product.

        b / (b + h) is the share of days on which the best order covers demand.
        """
        h = numbers_option("holding", self.holding, products)
        if self.service_level is None:
            b = numbers_option("backlog", "3" if self.backlog is None else self.backlog, products)
        else:
            b = odds(h, numbers_option("service-level", self.service_level, products, SHARE))
        return {"holding_cost": h, "backlog_cost": b}

    def of_series(self, products: list[str]) -> dict[str, Any]:
        """Each cost in a long table: a number, or one for each product and, last, one for a product that is new."""
        named = [each for each in (self.holding, self.backlog, self.service_level) if each and "=" in each]
        rest = named and all(OTHERS in named_numbers("backlog", each, COST) for each in named)
        found = self.of([*products, OTHERS] if rest else products)
        with_new = lambda cost: [*cost, median(cost)] if isinstance(cost, list) and not rest else cost
        return {name: with_new(cost) for name, cost in found.items()}


def odds(h: Any, share: Any) -> Any:
    """h s / (1 - s), of numbers or lists of them."""
    if not isinstance(h, list) and not isinstance(share, list):
        return h * share / (1 - share)
    n = len(h if isinstance(h, list) else share)
    pair = (each if isinstance(each, list) else [each] * n for each in (h, share))
    return [odds(one, other) for one, other in zip(*pair, strict=True)]


def with_costs(series: Any, prices: Prices) -> None:
    """Costs that differ by product become columns of a long table."""
    found = prices.of_series(series["names"])
    series |= {name: found[f"{name}_cost"] for name in COSTS if isinstance(found[f"{name}_cost"], list)}


def costs_of(schema: Any, prices: Prices) -> dict[str, Any]:
    """As newsvendors take them."""
    from bilevelax.sklearn._scored import CostColumn

    if not schema.series:
        return prices.of(schema.targets)
    found, places = prices.of_series(schema.series["names"]), {name: j for j, name in enumerate(schema.features())}
    columns = {f"{name}_cost": CostColumn(places[COSTS[name]]) for name in COSTS if name in schema.series}
    return found | columns
