"""What a convolution needs beside its tensors."""

from torch import nn

import rooflinekit as rk
from rooflinekit.model.kernels import issues_of
from rooflinekit.step.memory import memory_of


def test_windows_are_written_out_where_a_library_has_no_other_way() -> None:
    # one image of 5·8·8 results, windows of 4·3·3·3 numbers of 2 bytes
    graph = rk.trace(nn.Conv3d(4, 6, 3, padding=1, bias=False), rk.Input(2, 4, 5, 8, 8), dtype="bfloat16")
    single = rk.trace(nn.Conv3d(4, 6, 3, padding=1, bias=False), rk.Input(2, 4, 5, 8, 8))
    amd, nvidia = rk.load_device("amd-mi100"), rk.load_device("nvidia-a100-sxm4-80gb")
    assert memory_of(graph, issues_of(graph), amd).workspace_bytes == 5 * 8 * 8 * 4 * 27 * 2
    assert memory_of(graph, issues_of(graph), nvidia).workspace_bytes == 0
    assert memory_of(single, issues_of(single), amd).workspace_bytes == 0  # an implicit product, in fp32
