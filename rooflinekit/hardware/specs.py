"""Finds, reads and checks the specification files. The only module that knows where they lie."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, product
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

from rooflinekit.errors import (
    AmbiguousDeviceError,
    DeviceNotFoundError,
    DeviceWarning,
    InputError,
    PluginError,
    SpecError,
    nearest,
    printable,
)
from rooflinekit.files import plugins
from rooflinekit.hardware import checks
from rooflinekit.hardware.cluster import Cluster
from rooflinekit.hardware.device import SCHEMA_VERSION, Device
from rooflinekit.hardware.fields import FROM_FILE
from rooflinekit.hardware.host import Host
from rooflinekit.hardware.yaml_file import read_mapping, record_of

DEFAULT_HOST = "unnamed"

Spec: TypeAlias = Device | Host | Cluster
S = TypeVar("S", bound=Spec)

#: The folder of gpu_specs/ that has the files of a kind.
_FOLDERS: Mapping[Any, str] = {Device: "", Host: "hosts", Cluster: "clusters"}


def data_dir(name: str) -> Traversable:
    """Folder `name` of shipped data: inside the wheel, else beside the package in a checkout.

    Use only `iterdir`, `/`, `is_file`, `open` and `read_text` on it: in a zipped wheel it is no real folder.
    """
    # Traversable lacks `parent`; both kinds that `files` gives for a regular package, Path and zipfile.Path, have it.
    package = cast("Path", files("rooflinekit"))
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no {name}/ under {package} or beside it")


def device_names() -> tuple[str, ...]:
    """The names of all devices, sorted: the stems of the files in gpu_specs/ and in other packages' folders.

    >>> "nvidia-a100-sxm4-80gb" in device_names()
    True
    """
    return tuple(shipped_files(""))


def host_names() -> tuple[str, ...]:
    """The names of all hosts, sorted; each is the stem of a file in gpu_specs/hosts/, here or in another package."""
    return tuple(shipped_files("hosts"))


def cluster_names() -> tuple[str, ...]:
    """The names of all clusters, sorted; each is the stem of a file in gpu_specs/clusters/, or another package's."""
    return tuple(shipped_files("clusters"))


def devices(*, allow_draft: bool = False) -> tuple[Device, ...]:
    """All shipped devices, sorted by name; drafts only with `allow_draft`. Raises SpecError for one that is invalid."""
    every = (_shipped(Device, name) for name in device_names())
    return tuple(device for device in every if allow_draft or not device.draft)


def load_device(name_or_path: str | Path, *, allow_draft: bool = False) -> Device:
    """The device of this name, alias or file, its numbers checked against physics.

    A name may be written as the driver does, in any case and with any punctuation. A text that ends in .yaml or .yml,
    or that holds a path separator, is a path. "h100" is the board that most people mean, with a DeviceWarning that
    says which. Raises DeviceNotFoundError and AmbiguousDeviceError for names,
    SpecError for files, and for drafts unless `allow_draft`.

    >>> load_device("NVIDIA A100-SXM4-80GB").name
    'nvidia-a100-sxm4-80gb'
    """
    name = str(name_or_path)
    if is_path(name_or_path):
        device = _record(read_mapping(Path(name_or_path), name), Device, name)
        return _verified(_accepted(device, name, allow_draft), name)
    device = _shipped(Device, name) if name in device_names() else _device_called(name)
    return _accepted(device, device.name, allow_draft)


def _device_called(name: str) -> Device:
    """The device that goes by this name; files in which it cannot stand are not taken apart."""
    try:
        return resolve(name, (_shipped(Device, one) for one in shipped_files("") if stands_in(name, _letters(one))))
    except DeviceNotFoundError:
        return resolve(name, devices(allow_draft=True))


@cache
def _letters(name: str) -> str:
    return squash(name + shipped_files("")[name][0].read_bytes().decode(errors="replace"))


def load_host(name_or_path: str | Path = DEFAULT_HOST) -> Host:
    """The host of this name or file. Raises DeviceNotFoundError for an unknown name, SpecError for a bad file.

    >>> load_host().name
    'unnamed'
    """
    return _load(Host, name_or_path, f"; the hosts are {', '.join(host_names())}")


def clusters() -> tuple[Cluster, ...]:
    """All shipped clusters, in the order of `cluster_names`, each checked. Raises SpecError for a broken file."""
    return tuple(_shipped(Cluster, name) for name in cluster_names())


def load_cluster(name_or_path: str | Path) -> Cluster:
    """The cluster of this name or file, its links checked against physics and against its devices.

    Raises DeviceNotFoundError for an unknown name of it or of what is in it, SpecError for a bad file.

    >>> load_cluster("DGX A100").name
    'dgx-a100'
    """
    hint = nearest(str(name_or_path), cluster_names())
    return _load(Cluster, name_or_path, f"{hint}{' ' if hint else '; '}`rooflinekit clusters` lists all")


def device_of(gpu: object) -> Device:
    """The device itself, or the one that a name or a file means. Raises InputError for something else."""
    if gpu is None:
        raise InputError("gpu is missing: name one, such as gpu='nvidia-l4'; `rooflinekit devices` lists them")
    if not isinstance(gpu, str | Path | Device):
        several = "; compare_gpus, sweep and search take gpus=[…]" if isinstance(gpu, list | tuple) else ""
        raise InputError(f"gpu: expected a name, a path or a Device; got {gpu!r}{several}")
    return gpu if isinstance(gpu, Device) else load_device(gpu)


def host_of(host: str | Path | Host) -> Host:
    """The host itself, or the one that a name or a file means."""
    return host if isinstance(host, Host) else load_host(host)


def cluster_of(cluster: str | Path | Cluster) -> Cluster:
    """The cluster itself, or the one that a name or a file means."""
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def _load(kind: type[S], name_or_path: str | Path, hint: str) -> S:
    """The device of this name, or file; raises DeviceNotFoundError for an unknown name, with a hint."""
    text = str(name_or_path)
    if is_path(name_or_path):
        return _verified(_record(read_mapping(Path(name_or_path), text), kind, text), text)
    known = {squash(name): name for name in shipped_files(_FOLDERS[kind])}
    name = known.get(squash(text))
    if name is None:
        raise DeviceNotFoundError(f"unknown {kind.__name__.lower()} {text!r}{hint}")
    found: S = _shipped(kind, name)  # type: ignore[arg-type]  # a class can be hashed
    return found


def members_of(cluster: Cluster) -> tuple[Device, ...]:
    """The devices of one node, in the order of their numbers. Raises DeviceNotFoundError for a name nobody knows."""
    return tuple(load_device(name) for name in cluster.device_names)


def read_unverified(name_or_path: str) -> Spec:
    """The device, host or cluster of a name or file, draft or not; its form is checked and its physics is not.

    A file with the key `dispatch` is a host, one with `devices` a cluster. Raises SpecError and what lookups raise.
    """
    if is_path(name_or_path):
        mapping = read_mapping(Path(name_or_path), name_or_path)
        kind: type[Spec] = Host if "dispatch" in mapping else Cluster if "devices" in mapping else Device
        return _record(mapping, kind, name_or_path)
    for shipped, folder in _FOLDERS.items():
        if name_or_path in shipped_files(folder):
            return cast("Spec", _read_shipped(shipped, name_or_path))
    return resolve(name_or_path, devices(allow_draft=True))


@cache
def shipped_files(kind: str) -> Mapping[str, tuple[Traversable, str]]:
    """By name each file of a kind ("", "hosts", "clusters", "prices") and its label, those of other packages too.

    Raises SpecError where two have the same name, PluginError for a package that cannot be read.
    """
    found: dict[str, tuple[Traversable, str]] = {}
    for source, top in (("gpu_specs", data_dir("gpu_specs")), *specification_folders()):
        folder, place = (top / kind, f"{source}/{kind}") if kind else (top, source)
        files_there = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
        for name in (file.removesuffix(".yaml") for file in files_there if file.endswith(".yaml")):
            if name in found:
                raise SpecError(f"{place}/{name}.yaml: exists already as {found[name][1]}; remove one of the two")
            found[name] = folder / f"{name}.yaml", f"{place}/{name}.yaml"
    return dict(sorted(found.items()))


@cache
def _shipped(kind: type[S], name: str) -> S:
    return _verified(_read_shipped(kind, name), shipped_files(_FOLDERS[kind])[name][1])


def _read_shipped(kind: type[S], name: str) -> S:
    """Raises SpecError where it has another name than its file, by which nobody would find it."""
    file, label = shipped_files(_FOLDERS[kind])[name]
    record = _record(read_mapping(file, label), kind, label)
    if record.name != name:
        raise SpecError(f"{label}: name: expected {name!r}, as the file is called; got {record.name!r}")
    return record


def _verified(record: S, label: str) -> S:
    """The record; raises SpecError where it names what there is not, or disagrees with physics."""
    if isinstance(record, Device):
        checks.verify(record, label)
    elif isinstance(record, Cluster):
        try:
            kinds = [load_device(members.name) for members in record.devices]
            load_host(record.host)
        except LookupError as error:
            raise SpecError(f"{label}: {error}") from error
        checks.verify(record, label, kinds)
    return record


def _accepted(device: Device, label: str, allow_draft: bool) -> Device:
    """The device; raises SpecError for a draft that was not asked for."""
    if device.draft and not allow_draft:
        reason = f"{label}: is a draft ({device.draft_reason})"
        raise SpecError(f"{reason}; accept it with allow_draft=True (--allow-draft on the command line)")
    return device


def _record(mapping: dict[str, object], kind: type[S], label: str) -> S:
    """The mapping as a record of `kind`; the schema number comes first, for it decides what the rest means."""
    schema = mapping.get("schema")
    if type(schema) is not int:
        got = "the key is missing" if schema is None else f"got {schema!r:.40}"
        raise SpecError(f"{label}: schema: expected 'schema: {SCHEMA_VERSION}'; {got}")
    if schema != SCHEMA_VERSION:
        since = "this program is older than the file" if schema > SCHEMA_VERSION else "no such schema"
        raise SpecError(f"{label}: schema: expected {SCHEMA_VERSION}; got {schema}: {since}")
    return record_of(kind, mapping, label, FROM_FILE)


def is_path(name: str | Path) -> bool:
    """Whether a name of hardware or of prices is a file's; raises DeviceNotFoundError for what is neither."""
    if not isinstance(name, str | Path):
        raise DeviceNotFoundError(f"expected a name of hardware, or the path of a file; got {name!r:.60}")
    return isinstance(name, Path) or name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


GROUP = "rooflinekit.devices"


@cache
def specification_folders() -> tuple[tuple[str, Traversable], ...]:
    """For each entry point its package's name and folder, laid out as gpu_specs/: devices, hosts/, clusters/, prices/.

    Raises PluginError for one that cannot be imported or is no package.
    """
    found = []
    for label, package in plugins(GROUP):
        if not isinstance(package, ModuleType) or not hasattr(package, "__path__"):
            raise PluginError(f"{label}: expected a package with YAML files in it; repair or uninstall it")
        found.append((package.__name__, files(package)))
    return tuple(found)


# Which device a person means: exact names first, then every spelling that can mean only one.


# Words that drivers put in front of a name, and people leave out.
_BRANDS = frozenset({"nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "apple", "gpu"})


def resolve(query: str, devices: Iterable[Device]) -> Device:
    """The one device that `query` names, case, spaces and punctuation aside.

    Tried in turn: a full name or alias; the same without brand names; its words in any order; some of its words; then
    the same without the size and type of the device's own memory, as shops write them ("RTX 4090 24GB GDDR6X"). Other
    words that the query has in excess are never dropped: "RTX 4060 Ti" and "RTX 4090 Laptop GPU" are other chips.

    Of several the one that has the query in its `meant_by` is taken, with a DeviceWarning. Raises AmbiguousDeviceError
    when several devices fit and none has, DeviceNotFoundError when none fits.
    """
    known = {device.name: device for device in devices}
    names = {name: (name, *device.aliases) for name, device in known.items()}
    asked = [dict.fromkeys(known, query), {name: _without_memory(query, device) for name, device in known.items()}]
    for said, fits in product(asked, (_same_letters, _same_without_brand, _same_words, _some_words)):
        found = [name for name, spellings in names.items() if any(fits(said[name], given) for given in spellings)]
        if len(found) == 1:
            return known[found[0]]
        meant = [name for name in found if any(_same_words(query, short) for short in known[name].meant_by)]
        if len(meant) == 1:
            others = " and ".join(name for name in found if name != meant[0])
            warnings.warn(
                DeviceWarning(f"{query!r} is read as {meant[0]}, which most people mean; there is also {others}"),
                stacklevel=3,
            )
            return known[meant[0]]
        if found:
            raise AmbiguousDeviceError(f"{query!r} may be {', '.join(found[:-1])} or {found[-1]}; name one of them")
    raise DeviceNotFoundError(
        f"unknown device {query!r}; {_what_to_write(query, [*chain.from_iterable(names.values())])}"
        f"`rooflinekit devices` lists all {len(known)}"
    )


def _what_to_write(query: str, spellings: list[str]) -> str:
    """What to write for a name that is no GPU's, with "; " behind it; empty where nothing is alike."""
    several = _SEVERAL.fullmatch(query.strip())
    if several:
        name, count = several["one"] or several["name"], several["times"] or several["count"]
        return f"name one GPU, {name!r}; {count} of them are --gpus {count} with a --cluster; "
    if _OF_THIS_MACHINE.fullmatch(query.strip()):
        return "name the kind of GPU, as `nvidia-smi -L` prints it; "
    cluster = {squash(name): name for name in cluster_names()}.get(squash(query))
    if cluster:
        return f"{cluster} is a cluster: write --cluster {cluster}; "
    if query.strip().lower() in ("all", "any", "*"):
        return "name some, or leave them out of compare and search, which then take every GPU; "
    if query.strip().lower() in _BRANDS:
        return f"`rooflinekit devices --vendor {query.strip()}` lists its GPUs; "
    if "," in query:
        return "name one GPU at a time, with a --gpu for each; "
    hint = nearest(query, spellings)
    return f"{hint.removeprefix('; ')} " if hint else ""


_SEVERAL = re.compile(r"(?P<times>\d{1,2})\s*[x×]\s*(?P<one>\S.*)|(?P<name>\S.*?)\s*[x×]\s*(?P<count>\d{1,2})", re.I)
_OF_THIS_MACHINE = re.compile(r"(cuda|gpu|rocm|hip|mps)?:?\d?", re.I)


def stands_in(query: str, letters: str) -> bool:
    """Whether the words of a query stand somewhere in a file, squashed: where not, `resolve` does not find it there."""
    return all(word in letters for word in _words(query) if not _CAPACITY.fullmatch(word))


def squash(text: str) -> str:
    """Letters and digits alone, without case: under this two names must not be equal.

    >>> squash("NVIDIA A100-SXM4-80GB") == squash("nvidia_a100 sxm4 80gb")
    True
    """
    return "".join(re.findall(r"[^\W_]+", text.casefold()))


def _same_letters(query: str, spelling: str) -> bool:
    return squash(query) == squash(spelling) != ""


def _same_without_brand(query: str, spelling: str) -> bool:
    return "".join(_words(query)) == "".join(_words(spelling)) != ""


def _same_words(query: str, spelling: str) -> bool:
    return bool(_words(query)) and set(_words(query)) == set(_words(spelling))


def _some_words(query: str, spelling: str) -> bool:
    words, known = _words(query), set(_words(spelling))
    # One word must look like a model number: "ada" or "80 GB" alone names nobody.
    telling = any(re.search(r"\d", word) and len(word) > 1 and not _CAPACITY.fullmatch(word) for word in words)
    return telling and known.issuperset(words) and not (known - set(words)) & _OTHER_CHIPS


_OTHER_CHIPS = {"super", "ti", "xt", "xtx"}  # "RTX 5060" is not short for "RTX 5060 Ti"
_CAPACITY = re.compile(r"(\d+)gb")


def _without_memory(query: str, device: Device) -> str:
    """The query without words that say the size, in GB or GiB, or the type of this device's memory."""
    own, capacity = (device.dram.type or "").casefold(), device.dram.capacity

    def says(word: str) -> bool:
        number = _CAPACITY.fullmatch(word)  # 2 % apart: a board is sold as 192 GB that shows 180 GiB
        sizes = [int(number[1]) * unit for unit in (1e9, 2**30)] if number else []
        return word == own or any(abs(size / capacity - 1) < 0.02 for size in sizes)

    return " ".join(word for word in _words(query) if not says(word))


def _words(text: str) -> list[str]:
    """The words of a name in order, without brand names; a capacity is one word, "80gb"."""
    joined = re.sub(r"(\d+)\s*gb?\b", r"\1gb", text.casefold())
    return [word for word in re.findall(r"[^\W_]+", joined) if word not in _BRANDS]


# Every check of every specification: what passes, what is explained, what fails.


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The checks of one specification; a host has none beyond its form."""

    name: str
    draft: bool
    checks: tuple[checks.Check, ...]

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return not all(check.ok for check in self.checks)


def audits(targets: Sequence[str] = ()) -> tuple[Audit, ...]:
    """The checks of what is named, or of all that is shipped. Raises SpecError and what unknown names raise."""
    every = (*device_names(), *host_names(), *cluster_names())
    return tuple(_audit(target) for target in targets or every)


def _audit(target: str) -> Audit:
    record = read_unverified(target)
    if isinstance(record, Device):
        return Audit(name=target, draft=record.draft, checks=checks.run(record))
    kinds = [load_device(members.name) for members in record.devices] if isinstance(record, Cluster) else ()
    found = checks.run(record, kinds) if isinstance(record, Cluster) else ()
    return Audit(name=f"{target} ({type(record).__name__.lower()})", draft=False, checks=found)


def report(found: Sequence[Audit], *, every: bool = False) -> list[str]:
    """A line a specification and a line an exception; with `every`, a line every check."""
    lines = []
    for audit in found:
        counts = Counter(check.status for check in audit.checks)
        told = ", ".join(
            f"{counts[word]} {word}" for word in ("passed", "explained", "skipped", "failed") if counts[word]
        )
        lines.append(f"{audit.name}{' (draft)' if audit.draft else ''}: {told or 'well-formed'}")
        shown = [check for check in audit.checks if every or check.status != "passed"]
        lines += [printable(f"  {check.status}: {check.name}: {check.note}") for check in shown]
    failed = sum(audit.failed for audit in found)
    return [*lines, f"{len(found)} specification{'s' if len(found) > 1 else ''}, {failed} failed"]
