"""A cache of compiled programs: what one process compiled, the next one loads. Never switched on by an import."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bilevelax.base.program_files import ProgramFiles, Refused, entries, private_folder, require_private

SWITCH = "BILEVELAX_CACHE"  # "0": off; a folder: instead of the user's cache folder
MEGABYTES = 1024  # of all entries together
CPU = {  # what Linux tells of it, on x86, ARM and RISC-V
    *("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "isa", "uarch"),
    *(f"CPU {name}" for name in ("implementer", "architecture", "variant", "part", "revision")),
}
VERDICT = "reloads"  # file in a build's folder: "yes", or why its programs cannot be loaded


class Cache(NamedTuple):
    """What the cache of compiled programs is."""

    on: bool
    why: str  # where it is off, or cannot be written
    folder: Path | None
    entries: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        state = "on" if self.on else "off"
        held = f"{self.entries:,} programs, {self.bytes / 2**20:,.1f} MB" if self.folder else ""
        return "; ".join(part for part in (state, self.why, str(self.folder or ""), held) if part)


class _Held(NamedTuple):
    files: ProgramFiles
    root: Path


_held: _Held | None = None  # of this process


def cache(folder: str | Path | None = None, megabytes: float = MEGABYTES) -> Cache:
    """Keep the programs that JAX compiles from here on, and load those that were kept.

    The entries are machine code: give no folder that somebody you do not trust can write.

    Args:
        folder: where; by default ``bilevelax`` in the user's cache folder. Each build of JAX and each kind of CPU has
            a folder of its own in it. The variable ``BILEVELAX_CACHE`` names another default, or switches off (``0``).
        megabytes: bound of all of it; what was used longest ago is removed.

    Returns:
        Whether it is on, or why not. Then there is a warning, and the run goes on without.
    """
    from bilevelax.base.errors import require_positive

    require_positive("megabytes", "cache", megabytes)
    try:
        switch_on(None if folder is None else Path(folder).expanduser(), int(megabytes * 2**20))
    except Refused as refused:
        warnings.warn(f"Compiled programs are not kept: {refused}", stacklevel=2)
        return Cache(False, str(refused), None)
    return state()


def switch_on(folder: Path | None = None, most: int = MEGABYTES * 2**20) -> None:
    """`cache` without words; nothing where it is on already, or the user said no.

    Raises:
        Refused: with the reason for which there is no cache.
    """
    global _held
    if said_no():
        return
    root = private_folder(folder or default_folder())
    files = ProgramFiles(private_folder(root / build()), most)
    if _held and _held.files.folder == files.folder:
        _held.files.most = most
        return
    _give_to_jax(files)
    try:
        _require_reload(files)
    except Refused:
        _give_to_jax(_held.files if _held else None)
        raise
    _held = _Held(files, root)


def said_no() -> str:
    """Why the user wants no cache of ours, or nothing."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    jax = sys.modules.get("jax")
    own = jax.config.jax_compilation_cache_dir if jax else os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return f"JAX keeps its own in {own}" if own else ""


def state() -> Cache:
    """What is there, without switching anything on."""
    if _held:
        trouble = _held.files.trouble
        return _counted(True, f"not all is kept: {trouble}" if trouble else "", _held.root)
    if no := said_no():
        return Cache(False, no, None)
    try:
        root = default_folder()
        if root.exists() or root.is_symlink():
            require_private(root)
    except Refused as refused:
        return Cache(False, str(refused), None)
    told = verdict(root)
    return _counted(not told, told, root)


def _counted(on: bool, why: str, root: Path) -> Cache:
    sizes = [entry.size for entry in entries(root)]
    return Cache(on, why, root, len(sizes), sum(sizes))


def verdict(root: Path) -> str:
    """Why an earlier process could not load its programs, or nothing."""
    try:
        text = (root / build() / VERDICT).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return "" if text == "yes" else text[:300]


def default_folder() -> Path:
    """``bilevelax`` in the user's cache folder, or what the environment names."""
    if (named := os.environ.get(SWITCH, "")) not in ("", "1"):
        return Path(named).expanduser().absolute()
    try:
        home = Path.home()
    except RuntimeError:
        raise Refused("there is no home folder.") from None
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
        base = base if base.is_absolute() else home / ".cache"  # as its specification says
    return base / "bilevelax"


def build() -> str:
    """A name for programs that this JAX makes on this CPU: versions, jaxlib's own file, the CPU's features."""
    facts = [platform.machine(), platform.processor(), *_native_library()]
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts += [line for line in lines if line.split(":")[0].strip() in CPU]
    known = "-".join(_version(package) for package in ("jax", "jaxlib"))
    return f"jax-{known}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "0"


def _native_library() -> list[str]:
    """Names and sizes of jaxlib's compiled files: two builds may have one version."""
    spec = find_spec("jaxlib")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path for folder in folders for ending in ("so", "pyd", "dylib") for path in folder.glob(f"*.{ending}")]
    return sorted(f"{path.name} {path.stat().st_size}" for path in found)


def _give_to_jax(files: ProgramFiles | None) -> None:
    """JAX has options for a folder only, in which entries are neither written whole nor checked."""
    import jax

    if not getattr(jax.config, "jax_enable_compilation_cache", True):
        raise Refused("jax_enable_compilation_cache is off.")
    try:
        from jax._src import compilation_cache as jax_side

        assert hasattr(jax_side, "_cache") and hasattr(jax_side, "_cache_initialized")
    except (ImportError, AssertionError):
        raise Refused(f"jax {jax.__version__} takes no cache from outside.") from None
    if files is not None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax_side._cache, jax_side._cache_initialized = files, files is not None  # type: ignore[assignment]


def _require_reload(files: ProgramFiles) -> None:
    """Once for each build: compile, load, compare. Some CPUs reject every entry (jax-ml/jax issue 38445)."""
    place = files.folder / VERDICT
    if place.exists():
        if told := verdict(files.folder.parent):
            raise Refused(told)
        return
    told = _probe(files)
    with contextlib.suppress(OSError):  # then asked again next time
        place.write_text(told or "yes", encoding="utf-8")
    if told:
        raise Refused(told, news=True)


def _probe(files: ProgramFiles) -> str:
    """Why a program that was compiled here cannot be loaded here, or nothing."""
    import numpy as np

    x = np.arange(1, 17, dtype=np.float32)
    right = np.cumsum(x[::-1]) / x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns where it cannot load
        first = _fresh_program(x)(x)
        read, written = files.read, files.written
        second = _fresh_program(x)(x)
    if files.read == read:
        raise Refused(f"jax {_version('jax')} did not ask for its programs.")
    if files.written > written:
        return f"jaxlib {_version('jaxlib')} cannot load its own programs on this CPU (jax-ml/jax issue 38445)."
    close = all(np.allclose(np.asarray(found), right, rtol=1e-5) for found in (first, second))
    return "" if close else f"a program loaded by jaxlib {_version('jaxlib')} gave wrong numbers on this CPU."


def _fresh_program(x: Any) -> Any:
    """Compiled anew each time: JAX keeps programs in memory by function."""
    import jax
    import jax.numpy as jnp

    return jax.jit(lambda x: jnp.cumsum(x[::-1]) / x).lower(x).compile()
