"""The benchmark of two GPUs: its cases agree on a CPU, and exposed communication is what no other kernel covers."""

import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from bench import expert_parallel
from bench.kernel_groups import communication


def kernel(name: str, start: float, end: float, device: DeviceType = DeviceType.CUDA) -> SimpleNamespace:
    return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=start, end=end))


def test_exposed_communication_is_that_which_no_kernel_covers() -> None:
    events = [
        kernel("gemm", 0, 4000),
        kernel("gemm", 3000, 5000),
        kernel("ncclDevKernel_AllGather(x)", 4000, 8000),  # 3 ms alone
        kernel("ncclDevKernel_SendRecv(x)", 7000, 9000),  # 1 ms alone beyond the one before
        kernel("gemm", 10000, 12000),  # after 1 ms of nothing
        kernel("ncclDevKernel_AllGather(y)", 10500, 11500),  # covered
        kernel("a launch", 0, 99000, DeviceType.CPU),
    ]
    found = communication(events)
    expected = {"step": 12.0, "nccl": 6.0, "exposed": 4.0, "idle": 1.0, "exposed_share": 1 / 3}
    assert found == pytest.approx(expected | {"ncclDevKernel_AllGather": 5.0, "ncclDevKernel_SendRecv": 2.0})


def test_a_difference_above_the_tolerance_is_found(capsys) -> None:
    line = {"widths": "tiny", "case": "one", "losses": [5.0, 4.0], "norms": [1.0, 1.0]}
    other = line | {"case": "zero3", "losses": [5.0, 4.0003]}
    assert not expert_parallel._compare([line, other])
    assert expert_parallel._compare([line, other | {"losses": [5.0, 4.001]}])
    assert expert_parallel._compare([line, other | {"norms": [1.0, 1.01]}])


def test_tiny_run(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "two.jsonl"
    arguments = ["expert_parallel", "--widths", "tiny", "--cases", "one", "zero3-ep2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    assert expert_parallel.main() == 0
    one, two = map(json.loads, out.read_text().splitlines())
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5) and len(one["losses"]) == 8
    assert one["losses"][-1] < one["losses"][0] - 0.1
    assert len(two["communication_of_each_rank"]) == 2
