"""Figures without a window: panels in one row after another, equal files for equal data."""

from bilevelax.report.figures import figure_of, saved


def drawn(path):
    figure, panels = figure_of((4.0, 3.0), columns=2, rows=2, sharey=True)
    assert panels.shape == (4,) and panels[1].get_subplotspec().colspan.start == 1
    panels[0].plot([1, 2], [3, 4], label="a")
    return saved(figure, path, metadata={"Date": None})


def test_equal_data_give_equal_files_in_new_folders(tmp_path):
    one, two = (drawn(tmp_path / folder / "figure.svg") for folder in ("a", "b/c"))
    assert one.read_bytes() == two.read_bytes() and b"<svg" in one.read_bytes()
