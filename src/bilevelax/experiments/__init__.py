"""The paper's tables and figures, one file each. A new file with CONFIG, run, render and claims is found by itself.

An item is a module with

- ``CONFIG``, a `Config`: title, place in the paper, how long ``full`` takes, and for each scale
  (smoke, quick, full) a dict of plain settings, of which ``seeds`` is the default number of seeds;
- ``run(settings, seeds) -> Iterator[Cell]``: the parts of the experiment. A `Cell` is a name and a
  function of nothing that returns flat rows of plain values. Finished cells are never run again.
  Columns whose names begin with ``seconds`` are timings; all others must depend on the seed only;
- ``render(records, out) -> Rendered``: figures written to the folder ``out`` with
  `_figures.save`, and tables;
- ``claims(records) -> list[Claim]``: what the paper says, what was measured, and the verdict.

Shared pieces: `_figures` (one colour per method, bands over seeds), `_statistics` (intervals,
slopes), `_trajectories` (many seeds and step sizes of one method in one program).
"""

from __future__ import annotations

from bilevelax.discovery import Catalogue

catalogue = Catalogue(__name__, "item of the paper", factory="CONFIG")
