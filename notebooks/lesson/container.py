"""A zip that a stranger can open: equal contents give equal bytes, and whoever reads it takes it for hostile.

Nothing is compressed. So a file cannot grow while it is read, every byte of it is accounted for by writing it again,
and no version of a compression library can change it.
"""
import contextlib
import io
import json
import math
import os
import re
import stat
import struct
import warnings
import zipfile

import numpy as np

LARGEST = 32 * 2**20            # bytes of a whole file
ENTRIES, LONGEST_NAME = 500, 100
LARGEST_JSON, MOST_ITEMS, DEEPEST, DIGITS = 8 * 2**20, 300_000, 40, 20
NAME = re.compile(r"(?:[a-z0-9_]+/){0,2}[A-Za-z0-9_]+(?:\.[a-z0-9_]+){0,3}\.(?:json|npz|npy|png|ipynb)")


class Malformed(Exception):
    """What is wrong with a file, in one line."""


def pack(files):
    """`{name: bytes}` as one zip, the same bytes whenever and wherever it is made."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, files[name])
    return out.getvalue()


def pack_arrays(arrays):
    """`{name: array}` as the bytes of an `.npz` file that needs no pickle."""
    files = {}
    for name, array in arrays.items():
        array, out = np.asarray(array), io.BytesIO()
        np.lib.format.write_array(out, array.astype(array.dtype.newbyteorder("<"), order="C"), (1, 0), False)
        files[name + ".npy"] = out.getvalue()
    return pack(files)


def write(path, content):
    """Write bytes so that `path` holds either all of them or what it held before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:               # Ctrl-C too
        part.unlink(missing_ok=True)
        raise


def open_bundle(path):
    """`{name: bytes}` of the zip at `path`, or Malformed. Nothing is written, at most `LARGEST` bytes are read."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise Malformed("this is a folder; wanted a zip" if stat.S_ISDIR(found.st_mode) else "this is no file")
        if found.st_size > LARGEST:
            raise Malformed(f"the file has {found.st_size} bytes; wanted at most {LARGEST}")
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:          # ValueError: a NUL in the path
        raise Malformed(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return unpack(raw, "the file")


def unpack(raw, where):
    """`{name: bytes}` of a zip as `pack` writes it, or Malformed."""
    if not raw:
        raise Malformed(f"{where} is empty")
    if raw[:4] not in (b"PK\3\4", b"PK\5\6"):
        raise Malformed(f"{where} is no zip")
    if len(raw) > LARGEST:
        raise Malformed(f"{where} has {len(raw)} bytes; wanted at most {LARGEST}")
    if len(raw) < 22 or raw[-22:-18] != b"PK\5\6":
        raise Malformed(f"{where} is cut short, or something follows its end")
    # Looked at before zipfile is, which would make an object of each of a million entries.
    disk, first_disk, here, entries, size, offset, comment = struct.unpack("<4H2LH", raw[-18:])
    if raw[-42:-38] == b"PK\6\7" or 0xFFFF in (here, entries) or 0xFFFFFFFF in (size, offset):
        raise Malformed(f"{where} is a zip64 file; wanted at most {ENTRIES} entries in a plain one")
    if entries > ENTRIES:
        raise Malformed(f"{where} holds {entries} entries; wanted at most {ENTRIES}")
    if disk or first_disk or here != entries or comment or offset + size != len(raw) - 22:
        raise Malformed(f"the directory of {where} does not fit the file")
    if size > entries * (46 + LONGEST_NAME):
        raise Malformed(f"the directory of {where} has {size} bytes for {entries} entries; wanted short names only")
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            _check_directory(archive.infolist(), len(raw), where)
            files = {entry.filename: _read(archive, entry, where) for entry in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error) as error:
        raise Malformed(f"{where} is damaged: {plain(error)}") from None
    again = pack(files)
    if again != raw:
        at = next((i for i, (a, b) in enumerate(zip(raw, again, strict=False)) if a != b), min(len(raw), len(again)))
        raise Malformed(f"{where} is not written as `make evidence` writes it, from byte {at} on")
    return files


def _check_directory(entries, size, where):
    seen = set()
    for entry in entries:
        name = entry.orig_filename              # zipfile cuts `filename` at a NUL
        shown, kind = plain(name), entry.external_attr >> 16
        for wrong, words in (
                (name.startswith(("/", "\\")) or name[1:2] == ":", f"{shown} is an absolute path"),
                (".." in re.split(r"[/\\]", name), f"{shown} leads out of its folder"),
                (name.endswith("/") or stat.S_ISDIR(kind), f"{shown} is a folder; wanted files only"),
                (stat.S_ISLNK(kind), f"{shown} is a link; wanted files only"),
                (name.lower() in seen, f"{shown} is there twice"),
                (not NAME.fullmatch(name) or len(name) > LONGEST_NAME, f"{shown} is no name that a bundle uses"),
                (entry.flag_bits & 1, f"{shown} is encrypted"),
                (entry.compress_type != zipfile.ZIP_STORED, f"{shown} is compressed; wanted it stored as it is"),
                (entry.file_size != entry.compress_size,
                 f"{shown} claims {entry.file_size} bytes and has {entry.compress_size}")):
            if wrong:
                raise Malformed(f"{where}: {words}")
        seen.add(name.lower())
    if sum(entry.file_size for entry in entries) > size:
        raise Malformed(f"the entries of {where} claim more bytes than it has")


def _read(archive, entry, where):
    try:
        return archive.read(entry)
    except zipfile.BadZipFile:
        raise Malformed(f"{where}: {plain(entry.filename)} is damaged, its checksum or its header differs") from None


def read_json(raw, where):
    """What a JSON text holds, or Malformed: no duplicate keys, nothing infinite, nothing deep or huge."""
    if len(raw) > LARGEST_JSON:
        raise Malformed(f"{where} has {len(raw)} bytes; wanted at most {LARGEST_JSON}")
    items = depth = 0
    # What stands in quotes is one match, to the end if nothing closes it: looking on inside takes n**2 steps.
    for found in re.finditer(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', raw, flags=re.S):
        mark = raw[found.start()]
        items += mark in b",[{"
        depth += (mark in b"[{") - (mark in b"]}")
        if items > MOST_ITEMS:
            raise Malformed(f"{where} holds more than {MOST_ITEMS} values")
        if depth > DEEPEST:
            raise Malformed(f"{where} is nested deeper than {DEEPEST} levels")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_once, parse_int=_integer, parse_float=_float,
                          parse_constant=_float)
    except Malformed as error:
        raise Malformed(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{where} is no JSON in UTF-8: {plain(error)}") from None


def _once(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise Malformed(f"the key {plain(key)} is there twice")
        found[key] = value
    return found


def _integer(text):
    if len(text) > DIGITS:
        raise Malformed(f"a number has {len(text)} digits; wanted at most {DIGITS}")
    return int(text)


def _float(text):
    value = float(text)
    if len(text) > 40 or not math.isfinite(value):
        raise Malformed(f"{plain(text)} is no finite number of ordinary length")
    return value


def read_arrays(raw, where, wanted):
    """The arrays of an `.npz` file, or Malformed.

    Args:
        raw: the bytes of the file.
        where: its name, for what goes wrong.
        wanted: `{name: (dtype, shape)}`, exactly what the file has to hold. No pickle is ever loaded: a header is
            compared with the one that these give, and the rest must be as long as they say.
    """
    files, arrays = unpack(raw, where), {}
    if files.keys() != {name + ".npy" for name in wanted}:
        names = sorted(files.keys() ^ {name + ".npy" for name in wanted})
        raise Malformed(f"{where}: {', '.join(map(plain, names[:5]))} missing or not asked for")
    for name, (dtype, shape) in wanted.items():
        content, dtype = files[name + ".npy"], np.dtype(dtype).newbyteorder("<")
        header, size = _header(dtype, shape), dtype.itemsize * math.prod(shape)
        if not content.startswith(header):
            raise Malformed(f"{where}: {name} is {_described(content)}; wanted {dtype} {list(shape)}")
        if len(content) != len(header) + size:
            raise Malformed(f"{where}: {name} has {len(content) - len(header)} bytes of numbers; wanted {size}")
        if dtype == np.bool_ and max(content[len(header):], default=0) > 1:
            raise Malformed(f"{where}: {name} holds bytes that are neither True nor False")
        arrays[name] = np.frombuffer(content, dtype, offset=len(header)).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            raise Malformed(f"{where}: {name} holds NaN or infinity")
    return arrays


def _header(dtype, shape):
    out = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(out, description)
    return out.getvalue()


def _described(content):
    """Dtype, shape and order as an array's header says them, in words."""
    file = io.BytesIO(content[:12_000])
    with warnings.catch_warnings(), contextlib.suppress(Exception):         # numpy raises many kinds here
        warnings.simplefilter("ignore")
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        return plain(f"{dtype} {list(shape)}" + ", in Fortran order" * fortran + ", pickled" * dtype.hasobject, 80)
    return "no plain array"


def plain(text, longest=60):
    """Text of a stranger in one short line, without control characters."""
    text = "".join(c if c.isprintable() else "?" for c in str(text)[:longest + 1])
    return text if len(text) <= longest else text[:longest - 3] + "..."
