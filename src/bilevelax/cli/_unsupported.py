"""Options that people look for and that do not exist: a sentence each, and what to do instead."""

from __future__ import annotations

from typing import Any

INSTEAD = {
    "--budget": "A budget is --capacity, with what a unit costs as --size: --capacity 500 --size steak=7.5,fish=4.",
    "--space": "Space is --capacity, with what a unit takes of it as --size: --capacity 200 --size steak=2,fish=1.",
    "--shelf-life": "Stock that keeps for several days is not supported, except through --lead-time: what is left over "
    "costs --holding.",
    "--fixed-cost": "A fixed cost of ordering is not supported: --minimum and --pack are.",
    "--price": "Prices are costs here: --backlog is the margin lost with a unit, --holding what one left over costs.",
    "--margin": "The margin lost with a missing unit is --backlog.",
    "--horizon": "Orders are for the rows of the file: add a row for each day to come.",
    "--forecast": "Forecasts are columns of the file: name those that may be off with --perturb.",
    "--currency": "Costs have no currency: all are in the same one.",
    "--group": "Products of a long table are named with --id, such as --id store,item.",
    "--censored": "Sold-out days are named with --stockout.",
    "--leadtime": "It is written --lead-time.",
}


def instead_of(error: Any) -> str | None:
    """What to say of an option that a command does not have: why, or which commands beside it have it."""
    option = getattr(error, "option_name", None)
    if not option:
        return None
    if option in INSTEAD:
        return INSTEAD[option]
    asked, group = error.ctx, error.ctx.parent
    others = group.command.commands if group is not None else {}
    owners = [name for name, each in others.items() if any(option in it.opts for it in each.params)]
    where = " and ".join(f"`{group.command_path} {name}`" for name in owners)
    return f"{option} belongs to {where}, not to {asked.info_name}" if owners else None
