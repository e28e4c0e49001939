"""Other machines, as Linux reports them: folders that ROOFLINEKIT_SYSTEM_ROOT names in place of the machine at hand."""

from pathlib import Path

import pytest

from rooflinekit.hardware.detection import ROOT

#: Flags of /proc/cpuinfo, "Features" on Arm.
AVX2 = "fpu sse2 avx fma avx2"
AVX512 = f"{AVX2} avx512f avx512bw avx512vl"
AMX = f"{AVX512} amx_bf16 amx_tile amx_int8"
ARM = "fp asimd evtstrm aes crc32 asimdhp sve"
CPUS = {"avx2": AVX2, "avx512": AVX512, "avx512-amx": AMX, "neon": ARM}


def folder_of(
    root: Path, *, flags: str = AVX2, sockets: int = 1, clocks: bool = True, mhz: float | None = None
) -> Path:
    """A machine of 4 cores a socket with 2 threads each, 48 KiB of L1d, 1 MiB of L2 a core, 16 MiB of L3 a socket.

    clocks: whether cpufreq tells them. mhz: what /proc/cpuinfo says beside. With Arm's flags it names neither vendor
    nor model, cores have one thread, and no package is told, as on Graviton.
    """
    arm = "asimd" in flags.split()
    blocks = []
    for processor in range(8 * sockets):
        core, socket = processor // 2 % 4, processor // 8
        if arm:
            said = f"BogoMIPS\t: 50.00\nFeatures\t: {flags}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
        else:
            said = (
                f"vendor_id\t: GenuineIntel\nmodel name\t: Some CPU @ 3.00GHz\nphysical id\t: {socket}\n"
                f"core id\t\t: {core}\nflags\t\t: {flags}\n"
            )
        blocks.append(f"processor\t: {processor}\n{said}" + (f"cpu MHz\t\t: {mhz}\n" if mhz else ""))
        siblings = f"{processor}" if arm else f"{processor // 2 * 2}-{processor // 2 * 2 + 1}"
        caches = [
            ("1", "Data", "48K", siblings),
            ("1", "Instruction", "32K", siblings),
            ("2", "Unified", "1024K", siblings),
            ("3", "Unified", "16M", f"{socket * 8}-{socket * 8 + 7}"),
        ]
        for index, words in enumerate(caches):
            folder = root / f"sys/devices/system/cpu/cpu{processor}/cache/index{index}"
            folder.mkdir(parents=True)
            for file, word in zip(("level", "type", "size", "shared_cpu_list"), words, strict=True):
                (folder / file).write_text(word + "\n")
    if clocks:
        folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
        folder.mkdir()
        (folder / "base_frequency").write_text("3000000\n")
        (folder / "cpuinfo_max_freq").write_text("4500000\n")
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("\n".join(blocks))
    (root / "proc/meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    return root


def stand_in(monkeypatch: pytest.MonkeyPatch, root: Path, **said: object) -> None:
    """From here on the code under test finds the machine that `folder_of` makes of these words."""
    monkeypatch.setenv(ROOT, str(folder_of(root, **said)))
