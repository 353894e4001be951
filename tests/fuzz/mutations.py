"""Ways to damage or forge a file, each drawn from a random generator: bytes, JSON values, arrays, cells of tables."""

import copy
import hashlib
import io
import json
import zipfile

import numpy as np

ODD_VALUES = [
    *(None, True, False, 0, -1, 1, 2, 7, 1e308, -1e308, 1e-320, 0.5, 2**31, 2**53 + 1, 2**63, 10**30, -(10**30)),
    *(
        "",
        "x",
        "nan",
        "inf",
        "1.0",
        "../x",
        "/etc/passwd",
        "..",
        "a\nb",
        "|O",
        "<M8[s]",
        "<c16",
        "<f2",
        "O8",
        "mlp",
        "cv",
    ),
    *(
        [],
        {},
        [[]],
        [0],
        [10**9],
        [1, 2, 3],
        {"a": 1},
        {"list": [0]},
        {"other": "x", "leaves": [0]},
        {"dict": {"a": 0}},
    ),
    *(float("nan"), float("inf"), "é" * 50, "9" * 400),
]
ODD_BYTES = [
    b"\x00",
    b"\xff",
    b"\n",
    b'"',
    b"{",
    b"}",
    b"[",
    b",",
    b";",
    b"9" * 30,
    b"-",
    b"NaN",
    b"PK\x03\x04",
    b"\xef\xbb\xbf",
]
ODD_CELLS = [
    *(
        "",
        "nan",
        "inf",
        "-1e999",
        "1e308",
        "=1+1",
        "@x",
        '"',
        '""',
        "x" * 300,
        "\x00",
        "2024-13-45",
        "31.12.2024",
        "1,5",
    ),
    *("1" * 500, "2024-01-01T00:00:00Z", "9" * 25, " ", "é", "\t", "True", "0x10", "-", "1;2", "a,b", "\ufeff", "\r"),
]


def some(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data) + 1))
        way = int(rng.integers(6))
        if way == 0 and data:
            data[at % len(data)] ^= 1 << int(rng.integers(8))
        elif way == 1 and data:
            data[at % len(data)] = int(rng.integers(256))
        elif way == 2:
            del data[at:]
        elif way == 3:
            del data[at : at + int(rng.integers(1, 20))]
        elif way == 4:
            data[at:at] = some(rng, ODD_BYTES)
        else:
            data[at:at] = data[at : at + int(rng.integers(1, 200))]
    return bytes(data)


def _places(value, found):
    """Every (container, key) in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(items):
        found.append((value, key))
        _places(each, found)
    return found


def mutate_json(rng, data):
    """One to three values, names or entries of a JSON document are others."""
    document = json.loads(data)
    for _ in range(int(rng.integers(1, 4))):
        places = _places(document, [])
        if not places:
            break
        container, key = some(rng, places)
        way = int(rng.integers(6))
        if way == 0:
            del container[key]
        elif way == 1 and isinstance(container, dict):
            container[some(rng, ["x", "../x", "", "a\n", "sha256", "format"])] = container.pop(key)
        elif way == 2 and isinstance(container[key], int | float):
            container[key] = container[key] * some(rng, [-1, 2, 100, 1e6, 0, 1.5])
        elif way == 3 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(some(rng, ODD_VALUES))
    return document


def sealed(document):
    """The digest of whoever changes a document on purpose."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return {**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def mutate_array(rng, a):
    way = int(rng.integers(10))
    if way == 0:
        return a * some(rng, [100, -1, 0, 1e300, 1e-300])
    if way in (1, 2):
        a = np.array(a, copy=True)
        if a.size and a.dtype.kind == "f":
            a.flat[int(rng.integers(a.size))] = some(rng, [np.nan, np.inf, -np.inf, 1e308])
        return a
    if way == 3:
        return a.astype(some(rng, ["c16", "i8", "f2", "f4", "U9", "?", "u1", "longdouble"]))
    if way == 4:
        return a.reshape(-1)
    if way == 5:
        return a[..., None]
    if way == 6:
        return np.concatenate([a.ravel(), a.ravel()])
    if way == 7:
        return np.zeros(some(rng, [(0,), (), (1, 1), (10**6,)]))
    if way == 8:
        return np.array([{}, None], object)
    return a[::-1] if a.ndim else a


def mutate_npz(rng, data):
    """Other arrays, or an archive that is written otherwise."""
    with np.load(io.BytesIO(data)) as stored:
        arrays = dict(stored)
    name = some(rng, list(arrays))
    way = int(rng.integers(4))
    if way == 0:
        arrays[some(rng, ["x", "../x", "policy_99", name])] = arrays.pop(name)
    else:
        with np.errstate(all="ignore"):
            arrays[name] = mutate_array(rng, arrays[name])
    out = io.BytesIO()
    (np.savez_compressed if way == 1 else np.savez)(out, **arrays)
    if way == 3 and rng.integers(4) == 0:  # a header that says more than there is
        with zipfile.ZipFile(io.BytesIO(out.getvalue())) as archive:
            kept = {each: archive.read(each) for each in archive.namelist()}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for each, text in kept.items():
                archive.writestr(each, text.replace(b"), }         ", b"99999,), }"[:4] + b"}        ", 1))
    return out.getvalue()


def mutate_csv(rng, data):
    lines = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(int(rng.integers(1, 5))):
        row = some(rng, lines)
        way = int(rng.integers(8))
        if way < 4 and row:
            row[int(rng.integers(len(row)))] = some(rng, ODD_CELLS)
        elif way == 4:
            row.append(some(rng, ODD_CELLS))
        elif way == 5 and row:
            del row[int(rng.integers(len(row)))]
        elif way == 6:
            lines.insert(int(rng.integers(len(lines))), list(some(rng, lines)))
        else:
            lines = [lines[0], *[lines[i] for i in rng.permutation(len(lines))[: int(rng.integers(len(lines)))]]]
    text = "\n".join(
        some(rng, [",", ",", ",", ",", ";", "\t"]).join(row) if rng.integers(20) == 0 else ",".join(row)
        for row in lines
    )
    text = text.replace(",", ";") if rng.integers(10) == 0 else text
    return text.encode("utf-8", "surrogatepass") if rng.integers(10) else text.encode("utf-16")
