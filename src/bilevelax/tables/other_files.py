"""Tables that are no text: spreadsheets (.xlsx), parquet, compressed CSV. What a file holds decides, not its name."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bilevelax.base.errors import require_package

BEGINNINGS = {b"PK\x03\x04": "xlsx", b"PAR1": "parquet", b"\x1f\x8b": "gz"}
MOST = 2 << 30  # bytes that a compressed file may become
UNKNOWN = (".xls", ".xlsm", ".xlsb", ".ods", ".json", ".html", ".pdf", ".png")  # whose programs read no CSV
PACKAGES = {"xlsx": ("openpyxl", "sklearn"), "parquet": ("pyarrow", "parquet")}


def kind_of(path: Path) -> str | None:
    """ "xlsx", "parquet", "gz", or None for what is read as text."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(4)
    kind = next((kind for beginning, kind in BEGINNINGS.items() if head.startswith(beginning)), None)
    return kind if kind != "xlsx" or _is_workbook(path) else None


def _is_workbook(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as parts:
            return "xl/workbook.xml" in parts.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):  # also of a version that nobody wrote
        return False


def read_other(path: Path) -> Any:
    """The first sheet of a spreadsheet, or a parquet file, as a data frame with a name for every column."""
    pd = require_package("pandas", "bilevelax newsvendor", "sklearn")
    kind = kind_of(path)
    _require_reader(path, str(kind))
    try:
        if kind == "xlsx":
            _require_small(path)
        table = pd.read_excel(path) if kind == "xlsx" else pd.read_parquet(path)
    except Exception as error:  # the readers of both formats raise whatever they meet
        reason = str(error).split("\n")[0][:120]
        raise ValueError(f"{path} is no whole {kind} file ({reason}). Save it again, or as CSV UTF-8.") from None
    table.columns = [str(name).strip() for name in table.columns]
    twice = [name for name in table.columns if list(table.columns).count(name) > 1]
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}. Rename one of them.")
    if not len(table.columns):
        raise ValueError(f"{path} is empty: the first row must name the columns.")
    return table.reset_index(drop=True)


def _require_reader(path: Path, kind: str) -> None:
    package, extra = PACKAGES[kind]
    require_package(package, path.name, extra)


def _require_small(path: Path) -> None:
    with zipfile.ZipFile(path) as parts:
        if sum(part.file_size for part in parts.infolist()) > MOST:
            raise ValueError(f"it would become more than {MOST >> 30} GiB")


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A compressed file as the text that it holds, in a file of its own while it is read; any other as it is."""
    if kind_of(path) != "gz":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.name.removesuffix(".gz")
        try:
            with gzip.open(path) as packed, plain.open("wb") as file:
                while block := packed.read(1 << 20):
                    if file.tell() > MOST:
                        raise ValueError(f"{path} would become more than {MOST >> 30} GiB. Split it.")
                    file.write(block)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is no whole gzip file ({error}). Compress it again.") from None
        yield plain


def require_ending(out: Path) -> None:
    """Known before anything is computed: what a file is called is what is written."""
    if out.suffix.lower() in UNKNOWN:
        raise ValueError(f"`--out` must end in .csv, .csv.gz, .xlsx or .parquet. Got {str(out)!r}.")
    if (kind := out.suffix.lower()[1:]) in PACKAGES:
        _require_reader(out, kind)


def write_table(table: Any, out: Path, **how: Any) -> None:
    """The data frame as its name says; ``how`` is for text."""
    ending = out.suffix.lower()
    if ending == ".xlsx":
        table.to_excel(out, index=False)
    elif ending == ".parquet":
        table.to_parquet(out, index=False)
    elif out.name.lower().endswith(".csv.gz"):
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "table"
            table.to_csv(plain, index=False, compression=None, **how)
            with plain.open("rb") as file, gzip.open(out, "wb") as packed:
                shutil.copyfileobj(file, packed)
    else:
        table.to_csv(out, index=False, compression=None, **how)
