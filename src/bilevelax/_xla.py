"""How XLA is started: one of its fusions, which computes wrongly on CPU, is switched off. Imports no JAX.

From jaxlib 0.9.1 to 0.10.2 a library fusion gets some gradients, values and Hessian products of batches wrong, without
a word. The flag that empties its list is known from jaxlib 0.9.0 on; another version might not know it, and XLA ends a
process that gives it an unknown flag. There `bilevelax.base.self_test` has to speak.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

FUSION = "xla_cpu_experimental_ynn_fusion_type"
FLAG = f"--{FUSION}="
SWITCH = "BILEVELAX_XLA_FLAGS"  # "0" leaves XLA as it is
KNOWN_FROM, KNOWN_BEFORE = (0, 9), (0, 11)  # versions of jaxlib that take the flag


def jaxlib_version() -> str:
    found = find_spec("jaxlib")  # `importlib.metadata` takes as long as half of `bilevelax --help`
    written = Path(found.origin).with_name("version.py").read_text() if found and found.origin else ""
    told = re.search(r'^_version = "([^"]+)"', written, re.MULTILINE)
    return told[1] if told else "0"


def is_switched_off() -> bool:
    """Whether our programs are compiled without the fusion: unless the user said no, or jaxlib has no such flag."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", jaxlib_version())[:2])
    return os.environ.get(SWITCH) != "0" and KNOWN_FROM <= numbers < KNOWN_BEFORE


def switch_off_fusion() -> None:
    """Add the flag to XLA_FLAGS, which XLA reads when JAX starts its backend; a value given there stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    if is_switched_off() and FUSION not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()
