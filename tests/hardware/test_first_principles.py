"""Every shipped GPU once more, from what the makers print: lanes, clocks and bandwidth, and what one matrix unit does.

Nothing here comes from `hardware.checks`: that counts multiply-adds per SM, this counts them per matrix unit
and goes from one format to the next by the ratios of the architecture papers.
"""

import pytest

from rooflinekit.hardware import specs
from rooflinekit.hardware.device import Device

# As printed: fp32 lanes ("CUDA cores", "stream processors") of the device, boost clock in MHz, bandwidth in GB/s.
PRINTED = {
    "amd-mi50": (3840, 1725, 1024),
    "amd-mi60": (4096, 1800, 1024),
    "amd-rx-6800": (3840, 2105, 512),
    "amd-rx-6800-xt": (4608, 2250, 512),
    "amd-rx-6900-xt": (5120, 2250, 512),
    "amd-vega-56": (3584, 1471, 410),
    "amd-vega-64": (4096, 1546, 483.8),
    "amd-mi100": (7680, 1502, 1228.8),
    "amd-mi210": (6656, 1700, 1638.4),
    "amd-mi250x": (14080, 1700, 3276.8),
    "amd-mi250x-gcd": (7040, 1700, 1638.4),  # half of it
    "amd-mi300a": (14592, 2100, 5300),
    "amd-mi300x": (19456, 2100, 5300),
    "amd-mi308x": (5120, 1420, 5300),
    "amd-mi325x": (19456, 2100, 6000),
    "amd-mi355x": (16384, 2400, 8000),
    "amd-rx-7900-xtx": (6144, 2500, 960),
    "amd-rx-7900-xt": (5376, 2400, 800),
    "apple-m1-max-32c": (4096, 1296, 400),
    "apple-m2-max-38c": (4864, 1398, 400),
    "intel-max-1550": (16384, 1600, 3276.8),
    "amd-mi250": (13312, 1700, 3276.8),
    "amd-mi250-gcd": (6656, 1700, 1638.4),
    "nvidia-a10": (9216, 1695, 600),
    "nvidia-a10g": (10240, 1710, 600),
    "nvidia-a16": (1280, 1755, 200),  # a quarter of the board
    "nvidia-a2": (1280, 1770, 200),
    "nvidia-a30": (3584, 1440, 933),
    "nvidia-a40": (10752, 1740, 696),
    "nvidia-a100-pcie-40gb": (6912, 1410, 1555),
    "nvidia-a100-pcie-80gb": (6912, 1410, 1935),
    "nvidia-a100-sxm4-40gb": (6912, 1410, 1555),
    "nvidia-a100-sxm4-80gb": (6912, 1410, 2039),
    "nvidia-b200-sxm-180gb": (18944, 1965, 7700),
    "nvidia-b300-sxm-288gb": (18944, 2032, 7700),
    "nvidia-gb200": (19456, 2062, 8000),
    "nvidia-gb300": (19456, 2062, 8000),
    "nvidia-gh200-144gb": (16896, 1980, 4900),
    "nvidia-gh200-96gb": (16896, 1980, 4000),
    "nvidia-gtx-1080": (2560, 1733, 320),
    "nvidia-gtx-1080-ti": (3584, 1582, 484),
    "nvidia-gtx-titan-x-maxwell": (3072, 1075, 336.5),
    "nvidia-h100-nvl-94gb": (16896, 1785, 3938),
    "nvidia-h100-pcie-80gb": (14592, 1755, 2039),
    "nvidia-h100-sxm5-80gb": (16896, 1980, 3350),
    "nvidia-h20-96gb": (9984, 1980, 4000),
    "nvidia-h800-sxm5-80gb": (16896, 1980, 3350),
    "nvidia-h200-nvl-141gb": (16896, 1785, 4800),
    "nvidia-h200-sxm-141gb": (16896, 1980, 4800),
    "nvidia-jetson-agx-orin-64gb": (2048, 1300, 204.8),
    "nvidia-k80": (2496, 875, 240),  # half of the board
    "nvidia-l20": (11776, 2520, 864),
    "nvidia-quadro-rtx-5000": (3072, 1815, 448),
    "nvidia-quadro-rtx-6000": (4608, 1770, 672),
    "nvidia-quadro-rtx-8000": (4608, 1770, 672),
    "nvidia-rtx-2060": (1920, 1680, 336),
    "nvidia-rtx-2080": (2944, 1710, 448),
    "nvidia-rtx-2080-super": (3072, 1815, 496),
    "nvidia-rtx-3060-ti": (4864, 1665, 448),
    "nvidia-rtx-3070-ti": (6144, 1770, 608),
    "nvidia-rtx-3080-ti": (10240, 1665, 912),
    "nvidia-rtx-4000-ada": (6144, 2175, 360),
    "nvidia-rtx-4070-super": (7168, 2475, 504),
    "nvidia-rtx-4070-ti": (7680, 2610, 504),
    "nvidia-rtx-4070-ti-super": (8448, 2610, 672),
    "nvidia-rtx-4080-super": (10240, 2550, 736),
    "nvidia-rtx-4500-ada": (7680, 2580, 432),
    "nvidia-rtx-5000-ada": (12800, 2550, 576),
    "nvidia-rtx-5060-ti-16gb": (4608, 2572, 448),
    "nvidia-rtx-5070-ti": (8960, 2452, 896),
    "nvidia-rtx-a4500": (7168, 1650, 640),
    "nvidia-titan-rtx": (4608, 1770, 672),
    "nvidia-l4": (7424, 2040, 300),
    "nvidia-l40": (18176, 2490, 864),
    "nvidia-l40s": (18176, 2520, 864),
    "nvidia-p4": (2560, 1063, 192),
    "nvidia-p40": (3840, 1531, 346),
    "nvidia-p100-pcie-16gb": (3584, 1303, 732),
    "nvidia-p100-sxm2-16gb": (3584, 1480, 732),
    "nvidia-rtx-2070": (2304, 1620, 448),
    "nvidia-rtx-2080-ti": (4352, 1545, 616),
    "nvidia-rtx-3060": (3584, 1777, 360),
    "nvidia-rtx-3070": (5888, 1725, 448),
    "nvidia-rtx-3080": (8704, 1710, 760),
    "nvidia-rtx-3090": (10496, 1695, 936),
    "nvidia-rtx-3090-ti": (10752, 1860, 1008),
    "nvidia-rtx-4060": (3072, 2460, 272),
    "nvidia-rtx-4070": (5888, 2475, 504),
    "nvidia-rtx-4080": (9728, 2505, 717),
    "nvidia-rtx-4090": (16384, 2520, 1008),
    "nvidia-rtx-5070": (6144, 2512, 672),
    "nvidia-rtx-5080": (10752, 2617, 960),
    "nvidia-rtx-5090": (21760, 2407, 1792),
    "nvidia-rtx-6000-ada": (18176, 2505, 960),
    "nvidia-rtx-a4000": (6144, 1560, 448),
    "nvidia-rtx-a5000": (8192, 1695, 768),
    "nvidia-rtx-a5500": (10240, 1665, 768),
    "nvidia-rtx-pro-6000-blackwell-server": (24064, 2494, 1597),
    "nvidia-rtx-a6000": (10752, 1800, 768),
    "nvidia-rtx-pro-6000-blackwell": (24064, 2617, 1792),
    "nvidia-rtx-pro-6000-blackwell-max-q": (24064, 2280, 1792),
    "nvidia-t4": (2560, 1590, 320),
    "nvidia-titan-v": (5120, 1455, 653),
    "nvidia-titan-x-pascal": (3584, 1531, 480),
    "nvidia-v100-pcie-16gb": (5120, 1380, 900),
    "nvidia-v100-pcie-32gb": (5120, 1380, 900),
    "nvidia-v100-sxm2-16gb": (5120, 1530, 900),
    "nvidia-v100-sxm2-32gb": (5120, 1530, 900),
}

# fp32 operations of one lane and clock beyond a multiply-add: dual issue and packed instructions count twice.
DUAL_ISSUE = (
    "amd-mi300a", "amd-mi300x", "amd-mi308x", "amd-mi325x", "amd-mi355x", "amd-rx-7900-xt", "amd-rx-7900-xtx",
)  # fmt: skip

# fp16 multiply-adds of one matrix unit and clock, accumulated in fp32, on the fastest part of the architecture.
UNIT = {
    "Volta": 64,
    "Turing": 64,
    "8.0": 256,
    "8.6": 128,
    "8.7": 256,
    "Ada Lovelace": 128,
    "Hopper": 512,
    "10.0": 1024,
    "10.3": 1024,
    "12.0": 128,
    "CDNA": 128,
    "CDNA 2": 128,
    "CDNA 3": 256,
    "CDNA 4": 512,
    "RDNA 3": 128,
    "Xe-HPC (Ponte Vecchio)": 256,
}

# Rates of the other formats against fp16.
RATIO = {
    "Volta": {},
    "Turing": {"int8": 2},
    "8.0": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp64": 1 / 16},
    "8.6": {"bf16": 1, "tf32": 1 / 2, "int8": 2},
    "8.7": {"bf16": 1, "tf32": 1 / 2, "int8": 2},
    "Ada Lovelace": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2},
    "Hopper": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2, "fp64": 1 / 16},
    "10.0": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2, "fp4": 4, "fp64": 1 / 64},
    "10.3": {"bf16": 1, "tf32": 1 / 2, "int8": 1 / 16, "fp8": 2, "fp4": 6},
    "12.0": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2, "fp4": 4},
    "CDNA": {"bf16": 1 / 2, "int8": 1, "fp32": 1 / 4},
    "CDNA 2": {"bf16": 1, "int8": 1, "fp32": 1 / 4, "fp64": 1 / 4},
    "CDNA 3": {"bf16": 1, "tf32": 1 / 2, "int8": 2, "fp8": 2, "fp64": 1 / 8},
    "CDNA 4": {"bf16": 1, "int8": 2, "fp8": 2, "fp4": 4, "fp64": 1 / 32},
    "RDNA 3": {"bf16": 1, "int8": 1},
    "Xe-HPC (Ponte Vecchio)": {"bf16": 1, "tf32": 1 / 2, "int8": 2},
}

# GeForce accumulates in fp32 at half rate; int8 and fp4 keep theirs.
KEPT_BY_GEFORCE = ("int8", "fp4")

# Parts of which a share of the units' rate is left, in every format.
CUT = {"nvidia-l20": 1 / 2, "nvidia-l40": 1 / 2, "nvidia-a10g": 1 / 2, "nvidia-h20-96gb": 1 / 4}
# Parts made for export rules, with 1 TFLOP/s of fp64 and no fp64 in their matrix units.
WITHOUT_FP64 = ("nvidia-h20-96gb", "nvidia-h800-sxm5-80gb")

# Clocks in MHz behind printed matrix peaks, where they are not boost: printed peak / (2 x units x multiply-adds).
MATRIX_CLOCK = {
    "nvidia-h100-sxm5-80gb": 1830,
    "nvidia-h800-sxm5-80gb": 1830,
    "nvidia-h20-96gb": 1853,  # 148e12 / (2 x 312 x 128) = 1853e6
    "nvidia-h200-sxm-141gb": 1830,
    "nvidia-gh200-96gb": 1830,
    "nvidia-gh200-144gb": 1830,
    "nvidia-h100-pcie-80gb": 1620,
    "nvidia-h100-nvl-94gb": 1545,  # 835.3e12 / (2 x 528 x 512) = 1545e6
    "nvidia-h200-nvl-141gb": 1545,
    "nvidia-b200-sxm-180gb": 1856,  # 2250e12 / (2 x 592 x 1024) = 1856e6
    "nvidia-b300-sxm-288gb": 1856,
    "nvidia-gb200": 2008,  # 2500e12 / (2 x 608 x 1024) = 2008e6
    "nvidia-gb300": 2008,
}

# Figures of which only rounded ones are printed; each is explained in its file.
LOOSELY_PRINTED = {
    ("nvidia-b300-sxm-288gb", "fp4"): 0.04,  # 14 PFLOP/s against 13.5
    ("nvidia-gb300", "fp4"): 0.04,
    ("nvidia-gb300", "int8"): 0.03,  # 165 TOP/s against 160.5
}

# Vector fp64 and fp16 against fp32 (plain multiply-adds).
VECTOR_RATIO = {
    "Kepler": {"fp64": 1 / 3},
    "Maxwell": {"fp64": 1 / 32},
    "6.0": {"fp64": 1 / 2, "fp16": 2},
    "6.1": {"fp64": 1 / 32, "fp16": 1 / 64, "int8": 4},
    "Volta": {"fp64": 1 / 2, "fp16": 2},
    "Turing": {"fp64": 1 / 32, "fp16": 2},
    "8.0": {"fp64": 1 / 2, "fp16": 4},
    "8.6": {"fp64": 1 / 64, "fp16": 1},
    "8.7": {"fp64": 1 / 64, "fp16": 2},
    "Ada Lovelace": {"fp64": 1 / 64, "fp16": 1},
    "Hopper": {"fp64": 1 / 2, "fp16": 2},
    "10.0": {"fp64": 1 / 2},
    "10.3": {"fp64": 1 / 64},
    "12.0": {"fp64": 1 / 64, "fp16": 1},
    "Vega 20 (GCN 5.1)": {"fp64": 1 / 2, "fp16": 2, "int8": 4},
    "gfx900": {"fp64": 1 / 16, "fp16": 2},
    "gfx1030": {"fp64": 1 / 16, "fp16": 2, "int8": 4},
    "CDNA": {"fp64": 1 / 2},
    "CDNA 2": {"fp64": 1},
    "CDNA 3": {"fp64": 1},
    "CDNA 4": {"fp64": 1},
    "RDNA 3": {"fp64": 1 / 16, "fp16": 4},
    "M1 family 7": {"fp16": 1},
    "M2 family 8": {"fp16": 1},
    "Xe-HPC (Ponte Vecchio)": {"fp64": 1},
}

GPUS = tuple(name for name in specs.device_names() if name in PRINTED)


def row(table: dict, device: Device):  # the architecture, or the compute capability where that decides
    return table[device.architecture if device.architecture in table else device.compute_capability]


def test_every_gpu_is_rederived() -> None:
    assert {device.name for device in specs.devices() if device.kind == "gpu"} == set(PRINTED)


@pytest.mark.parametrize("name", GPUS)
def test_vector_peaks(name: str) -> None:
    device = specs.load_device(name)
    lanes, clock, _ = PRINTED[name]
    plain = 2 * lanes * clock * 1e6
    assert device.sm_count * device.lanes_per_sm == lanes
    assert device.vector_peak["fp32"] == pytest.approx(plain * (2 if name in DUAL_ISSUE else 1), rel=0.01)
    expected = {math: plain * ratio for math, ratio in row(VECTOR_RATIO, device).items()}
    if name in WITHOUT_FP64:
        expected["fp64"] = 1e12
    found = {math: peak for math, peak in device.vector_peak.items() if math != "fp32"}
    assert found == pytest.approx(expected, rel=0.035)


@pytest.mark.parametrize("name", GPUS)
def test_matrix_peaks(name: str) -> None:
    device = specs.load_device(name)
    if device.tensor_cores is None:
        assert not device.matrix_peak
        return
    _, boost, _ = PRINTED[name]
    clock = MATRIX_CLOCK.get(name, boost) * 1e6
    full = 2 * device.tensor_cores * row(UNIT, device)
    geforce = "GeForce" in (device.display_name or "")
    ratios = {"fp16": 1, **row(RATIO, device)}
    if name in WITHOUT_FP64:
        ratios.pop("fp64")
    for math, ratio in ratios.items():
        share = 0.5 if geforce and math not in KEPT_BY_GEFORCE else CUT.get(name, 1)
        # fp64 is printed at the boost clock, and so is int8 of the B300, where it is what is left of a unit.
        at_boost = math == "fp64" or (math == "int8" and ratio < 1 / 8)
        expected = full * ratio * share * (boost * 1e6 if at_boost else clock)
        tolerance = LOOSELY_PRINTED.get((name, math), 0.025)
        assert device.matrix_peak[math] == pytest.approx(expected, rel=tolerance), math
        if geforce and math in ("fp16", "fp8") and math in device.matrix_peak_fp16_accumulate:
            assert device.matrix_peak_fp16_accumulate[math] == pytest.approx(2 * expected, rel=0.025)
    assert set(device.matrix_peak) == set(ratios)
    assert bool(device.matrix_peak_fp16_accumulate) == geforce


@pytest.mark.parametrize("name", GPUS)
def test_bandwidth(name: str) -> None:
    device = specs.load_device(name)
    assert device.dram.bandwidth == pytest.approx(PRINTED[name][2] * 1e9, rel=0.015)
    # Memory comes in channels of 32 bit (GDDR, LPDDR) or 64 (HBM, of which a few may be switched off).
    assert device.dram.bus_width is not None
    assert device.dram.type is not None
    assert device.dram.bus_width % (64 if device.dram.type.startswith("HBM") else 32) == 0


# Cores, fp32 multiply-adds a core and clock, GHz that all cores sustain (or turbo), channels, MT/s.
CPUS = {
    "amd-epyc-7763": (64, 2 * 8, 2.45, 8, 3200),
    "generic-cloud-cpu-avx2": (16, 2 * 8, 2.4, 2, 3200),
    "generic-cloud-cpu-avx512": (16, 2 * 16, 2.4, 2, 3200),
    "intel-core-i7-12700h": (6, 2 * 8, 4.7, 2, 4800),
    "intel-core-i9-10940x": (14, 2 * 16, 3.3, 4, 2933.3),
    "intel-xeon-platinum-8480plus": (56, 2 * 16, 2.0, 8, 4800),
}


@pytest.mark.parametrize("name", CPUS)
def test_cpus(name: str) -> None:
    device = specs.load_device(name)
    cores, lanes, clock, channels, transfers = CPUS[name]
    assert device.vector_peak["fp32"] == pytest.approx(2 * cores * lanes * clock * 1e9, rel=1e-3)
    assert device.vector_peak["fp64"] == pytest.approx(cores * lanes * clock * 1e9, rel=1e-3)
    assert device.dram.bandwidth == pytest.approx(channels * 8 * transfers * 1e6, rel=1e-3)


def test_tile_units_of_a_cpu() -> None:
    device = specs.load_device("intel-xeon-platinum-8480plus")
    # AMX multiplies 16 x 32 by 32 x 16 numbers of 16 bit in 16 clocks: 2 x 16 x 16 x 32 / 16 = 1024 FLOP a clock.
    assert device.matrix_peak["bf16"] == pytest.approx(1024 * 56 * 2e9, rel=1e-3)
    assert device.matrix_peak["int8"] == pytest.approx(2048 * 56 * 2e9, rel=1e-3)
