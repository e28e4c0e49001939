"""Three hundred broken specification files: each gives one clear error, quickly and in little memory."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refusal

from rooflinekit.errors import RooflinekitError
from rooflinekit.hardware import specs
from rooflinekit.hardware.device import FORMATS, SOURCE_GROUPS, Clock, Device, Interconnect, Memory, Pcie

SHIPPED = ("nvidia-h100-sxm5-80gb", "amd-mi300x", "nvidia-rtx-4090", "apple-m2-max-38c", "intel-core-i9-10940x")
TEXTS = {name: (specs.data_dir("gpu_specs") / f"{name}.yaml").read_text("utf-8") for name in SHIPPED}
KEYS = {key for kind in (Device, Memory, Clock, Interconnect, Pcie) for key in kind.model_fields}
KNOWN = KEYS | {*FORMATS, *SOURCE_GROUPS, "schema"}

LINE = re.compile(r"^(?P<indent>(?:  )?)(?P<key>[a-z0-9_]+): *(?P<value>[^#\n]*?)(?P<comment> *#.*)?$", re.MULTILINE)
QUANTITY = re.compile(r"[\d.]+ [A-Za-z/]+")
REQUIRED = ("schema", "name", "vendor", "architecture", "sm_count", "lanes_per_sm", "boost", "capacity", "bandwidth")
WRONG_UNITS = {
    "B": "B/s", "B/s": "B", "FLOP/s": "Hz", "OP/s": "W", "Hz": "FLOP/s", "bit": "B", "bit/s": "bit", "W": "s",
}  # fmt: skip
NO_QUANTITY = (
    ".nan", "-.inf", "5", "0", "-1 GB", "[1 GB]", "{a: 1 GB}", "true", "1e400 GB", "1 GB GB", "∞ W", "'９ GB'", "''",
)  # fmt: skip
NO_COUNT = (
    "-1", "0", "1.5", "'66'", "true", ".nan", "66 SMs", "[66]", "99999999999999999999", "2001-01-01", "~", "1:30",
)  # fmt: skip
BOMB = "\n".join(
    ['a0: &a0 ["x","x","x","x","x","x","x","x","x"]']
    + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
HUGE = {
    "comment": "#" * (2**20 + 1),
    "spaces": " " * 2**20 + "\n",
    "list": "aliases: [" + "a," * 500_000 + "]\n",
    "mapping": "{" + ",".join(f"k{i}: 1" for i in range(100_000)) + "}",
    "nested": "[" * 500_000,
    "nested mappings": "{a: " * 100_000,
    "indents": "\n".join(" " * i + "a:" for i in range(1000)),
    "digits": "schema: " + "9" * 1_000_000,
    "base sixty": "schema: " + "1:" * 400_000 + "1",
    "base sixty fraction": "schema: " + "1:" * 400_000 + "1.5",
    "hexadecimal": "schema: 0x" + "f" * 1_000_000,
    "one key": "? " + "k" * 1_000_000 + "\n: 1",
    "text": "schema: 1\nname: '" + "n" * 1_000_000 + "'",
    "anchors": "\n".join(f"k{i}: &a{i} 1" for i in range(50_000)),
    "bomb": BOMB,
    "bomb of mappings": "a: &a {x: 1}\n" + "\n".join(f"k{i}: {{<<: [*a, *a, *a]}}" for i in range(10_000)),
    "escapes": 'schema: "' + "\\U0001F600" * 90_000 + '"',
    "documents": "--- 1\n" * 100_000,
}


@st.composite
def damaged_text(draw: st.DrawFn) -> str:
    """A shipped file with one thing wrong that no specification may have."""
    return draw(st.sampled_from(DAMAGES))(draw, draw(st.sampled_from(list(TEXTS.values()))))


def replace(text: str, line: re.Match[str], new: str) -> str:
    return text[: line.start()] + new + text[line.end() :]


def pick(draw: st.DrawFn, text: str, fits: Callable[[re.Match[str]], bool]) -> re.Match[str]:
    return draw(st.sampled_from([line for line in LINE.finditer(text) if fits(line)]))


def dropped(draw: st.DrawFn, text: str) -> str:
    line = pick(
        draw,
        text,
        lambda line: line["key"] in REQUIRED or (line["key"] == "fp32" and "vector" not in text[line.start() :]),
    )
    return replace(text, line, "")


def doubled(draw: st.DrawFn, text: str) -> str:
    line = pick(draw, text, lambda line: line["value"] not in ("", ">-"))
    return replace(text, line, f"{line[0]}\n{line[0]}")


def misspelt(draw: st.DrawFn, text: str) -> str:
    line = pick(draw, text, lambda line: line["key"] in KNOWN)
    key = line["key"]
    at = draw(st.integers(0, len(key) - 1))
    wrong = draw(st.sampled_from((key[:at] + key[at + 1 :], key[:at] + "q" + key[at:], key.upper() + "_", key + "s")))
    wrong = wrong if wrong and wrong not in KNOWN else "q" + key
    return replace(text, line, f"{line['indent']}{wrong}: {line['value']}")


def wrong_unit(draw: st.DrawFn, text: str) -> str:
    line = pick(draw, text, lambda line: QUANTITY.fullmatch(line["value"]) is not None)
    number, unit = line["value"].split(" ")
    base = next(base for base in sorted(WRONG_UNITS, key=len, reverse=True) if unit.endswith(base))
    wrong = (
        f"{number} {unit.removesuffix(base)}{WRONG_UNITS[base]}",
        f"{number} {unit.lower()}x",
        f"-{number} {unit}",
        f"{number}",
        f"{number}e40 {unit}",
        f"{number},5 {unit}",
        f"0 {unit}",
        f"nan {unit}",
        *NO_QUANTITY,
    )
    return replace(text, line, f"{line['indent']}{line['key']}: {draw(st.sampled_from(wrong))}")


def wrong_count(draw: st.DrawFn, text: str) -> str:
    line = pick(draw, text, lambda line: line["key"] in ("schema", "sm_count", "lanes_per_sm"))
    return replace(text, line, f"{line['key']}: {draw(st.sampled_from(NO_COUNT))}")


def impossible(draw: st.DrawFn, text: str) -> str:
    # A factor that no rounding explains; both peaks and bandwidth are stated twice in a file.
    def checked(line: re.Match[str]) -> bool:
        stated = line["key"] in ("fp32", "fp16", "bandwidth") and QUANTITY.fullmatch(line["value"]) is not None
        return stated and f"vector_peak.{line['key']}:" not in text

    line = pick(draw, text, checked)
    number, unit = line["value"].split(" ")
    factor = draw(st.one_of(st.floats(0.01, 0.6), st.floats(1.7, 100)))
    return replace(text, line, f"  {line['key']}: {float(number) * factor:.6f} {unit}")


def referring(draw: st.DrawFn, text: str) -> str:
    line = pick(draw, text, lambda line: line["value"] not in ("", ">-"))
    value = draw(
        st.sampled_from(("&a 1", "*a", "!!python/object/apply:os.system [ls]", "!x 1", "&a [*a]", "!!binary aGk="))
    )
    return replace(text, line, f"{line['indent']}{line['key']}: {value}")


def cut(draw: st.DrawFn, text: str) -> str:
    return text[: draw(st.integers(0, text.index("vector_peak:")))]


def littered(draw: st.DrawFn, text: str) -> str:
    at = draw(st.integers(0, text.index("sources:")))
    return text[:at] + draw(st.sampled_from(("\0", "\x07", "\x1b[31m", "\x7f"))) + text[at:]


DAMAGES = (dropped, doubled, misspelt, wrong_unit, wrong_unit, wrong_count, impossible, referring, cut, littered)


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """What is no text, no YAML, no mapping, or no end."""
    text = draw(st.sampled_from(list(TEXTS.values())))
    way = draw(st.integers(0, 5))
    if way == 0:
        return draw(st.binary(max_size=300))
    if way == 1:
        return draw(st.text(max_size=300)).encode("utf-8", "replace")
    if way == 2:
        return (text + "notes: caf\u00e9 \u00fc\n").encode("latin-1", "replace")
    if way == 3:
        return text.encode(draw(st.sampled_from(("utf-16", "utf-32-le", "cp037"))))
    if way == 4:
        return draw(st.sampled_from(sorted(HUGE.values()))).encode()
    at = draw(st.integers(0, len(text)))
    return (
        text[:at].encode()
        + draw(st.sampled_from((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88")))
        + text[at:].encode()
    )


def complaint(path: Path) -> str:
    message = refusal(RooflinekitError, specs.load_device, path)
    assert message.startswith(f"{path}:")
    assert message.isprintable(), repr(message)
    assert len(message) < len(str(path)) + 700
    return message


@settings(
    max_examples=300,
    derandomize=True,
    deadline=2000,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(content=st.one_of(damaged_text().map(lambda text: text.encode("utf-8", "surrogatepass")), damaged_bytes()))
def test_a_damaged_file_gives_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    complaint(path)


LINKS = {
    "loop.yaml": ("loop.yaml", "is no regular file, or a link that leads to none; expected a YAML file"),
    "lost.yaml": ("nowhere.yaml", "is no regular file, or a link that leads to none; expected a YAML file"),
    "zero.yaml": ("/dev/zero", "is no regular file, or a link that leads to none; expected a YAML file"),
    "folder.yaml": (".", "is a directory; expected a YAML file"),
}


@pytest.mark.parametrize("name", LINKS)
def test_links(tmp_path: Path, name: str) -> None:
    target, message = LINKS[name]
    (tmp_path / name).symlink_to(target)
    assert message in complaint(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert complaint(tmp_path / "pipe.yaml").endswith(LINKS["zero.yaml"][1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("name", HUGE)
def test_huge_files_take_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text(HUGE[name], encoding="utf-8")
    program = (
        "import pathlib, re, sys\n"
        "from rooflinekit.errors import SpecError\n"
        "from rooflinekit.hardware import specs\n"
        "try:\n"
        "    specs.load_device(sys.argv[1])\n"
        "except SpecError:\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[1])\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    assert int(done.stdout) * 1024 < 200e6
