"""What is shipped: wheel and sdist, built and installed in environments of their own."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from run_records import save

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


class Environment:
    """A virtual environment in a folder."""

    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
        self.python = folder / "bin" / "python"

    def install(self, *what):
        limits = ["-c", str(ROOT / "constraints.txt")]
        self.run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *limits, *map(str, what))

    def run(self, *words, check=True, folder=None):
        done = subprocess.run(
            [str(self.python), *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=1200
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), made from the files that git tracks or that are new: what a clone holds."""
    folder = tmp_path_factory.mktemp("build")
    builder = Environment(folder / "venv")
    builder.install("hatchling")
    builder.run("-m", "hatchling", "build", "-d", folder / "dist", folder=ROOT)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def clean(tmp_path_factory, built):
    """An environment with the wheel and its core dependencies."""
    environment = Environment(tmp_path_factory.mktemp("clean") / "venv")
    environment.install(built[0])
    return environment


def test_wheel_and_sdist_hold_all_parts(built):
    wheel, sdist = built
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [p for p in (ROOT / "src").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    missing = {str(path.relative_to(ROOT / "src")) for path in sources} - names
    assert not missing and "bilevelax/report/page/page.html" in names and "bilevelax/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"bilevelax", "bilevelax_paper"}
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/bilevelax/run/minimize.py"} <= held


def test_core_alone(clean, tmp_path):
    """No command-line, table or learning package: the README's first script runs, commands say what they need."""
    (script, *_) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "script.py").write_text(script)
    assert clean.run("script.py", folder=tmp_path).stdout
    absent = "import importlib.util as u; print([n for n in ('typer', 'rich', 'sklearn', 'pandas') if u.find_spec(n)])"
    assert clean.run("-c", absent).stdout == "[]\n"
    for words in ([str(clean.python), "-m", "bilevelax"], [str(clean.python.parent / "bilevelax")]):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "pip install 'bilevelax[all]'" in done.stderr


def test_commands_from_the_wheel(clean, built, tmp_path):
    clean.install(f"{built[0]}[cli]")
    assert "bilevelax demo" in clean.run("-m", "bilevelax", folder=tmp_path).stdout
    assert "quadratic" in clean.run("-m", "bilevelax", "list", folder=tmp_path).stdout
    clean.run("-m", "bilevelax", "report", save(tmp_path / "run"), folder=tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
