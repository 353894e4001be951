"""``bilevelax features``: features of a folder of images, for `load_features`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevelax.cli._options import AsJson
from bilevelax.cli._terminal import print_json, say


def features(
    image_folder: Annotated[Path, typer.Argument(help="Holds one folder of images per class.")],
    out: Annotated[Path, typer.Argument(help="File to write, ending in .npz.")],
    dim: Annotated[int, typer.Option(help="Principal components kept.")] = 512,
    held_out: Annotated[float, typer.Option(help="Share of every class that they are not fitted on.")] = 0.1,
    seed: Annotated[int | None, typer.Option(help="Of that split; without it the last images are held out.")] = None,
    batch: Annotated[int, typer.Option(help="Images at once.")] = 64,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")] = False,
    as_json: AsJson = False,
) -> None:
    """Extract 512-dimensional features from a folder of class folders of images (needs bilevelax[features])."""
    from bilevelax.datasets.extract import extract_features

    say(f"Features of {image_folder}")
    try:
        done = extract_features(
            image_folder,
            out,
            dim=dim,
            held_out=held_out,
            seed=seed,
            batch=batch,
            overwrite=overwrite,
            report=lambda line: typer.echo(line, err=True),
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on with the classes that are left.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json({**done._asdict(), "path": str(done.path)})
        return
    typer.echo(
        f"{done.path}: {done.images} images of {done.classes} classes, {done.dim} features "
        f"({done.explained:.0%} of the variance), {len(done.skipped)} images skipped."
    )
