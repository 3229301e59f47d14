"""The benchmark of a layer runs on any machine, and its figures follow from its own times."""

import json

import pytest

from bench import kernel_groups, layer_speed


def test_tiny_run(tmp_path, monkeypatch, capsys) -> None:
    out = tmp_path / "speed.json"
    arguments = ["layer_speed", "--tiny", "--shape", "packed", "--repeats", "1", "--steps", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", arguments)
    layer_speed.main()
    run = json.loads(out.read_text())["runs"][0]
    assert run["losses"]["plain 4"] == pytest.approx(run["losses"]["ours 4"], rel=1e-5)
    assert run["losses"]["plain 4"] != run["losses"]["plain 8"]  # the slice really has fewer layers
    ours = run["summary"]["ours"]
    layer = (run["ms"]["ours 8"][0] - run["ms"]["ours 4"][0]) / 4
    assert ours["layer_ms"] == pytest.approx(layer)
    whole = run["ms"]["ours 8"][0] + 32 * layer
    assert ours["extrapolated_40_layers_tokens_per_s"] == pytest.approx(1000 * run["tokens"] / whole)


def test_operations_of_a_layer_are_those_of_its_weights() -> None:
    """Without attention's pairs and the delta rule's state: 6 operations a weight and token (8 of 256 experts)."""
    widths = layer_speed.REAL | {"linear_key_head_dim": 128}
    gated_delta_net, attention = 33.72e6 - 4 * 8192 - 2 * 2048 * 32, 27.26e6
    experts = 3.146e6 * 9 + 0.524e6
    state = 2 * 4096 * 128
    expected = 6 * (experts + 0.75 * (gated_delta_net + state) + 0.25 * attention)
    assert layer_speed.layer_flops(widths, 1, 0) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "dense matrix products"),
        ("_ZN7cutlass13device_kernelINS5_17GroupProblemShapeIN4cute", "grouped matrix products (experts)"),
        ("_swiglu_backward_kernel", "rows of the experts: gather, SwiGLU, sum"),
        ("causal_conv1d_bwd_kernel", "convolution"),
        ("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64", "delta rule"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(...)", "attention"),
        ("_backward_kernel", "cross-entropy and softmax"),
        ("a_kernel_of_tomorrow", "other: a_kernel_of_tomorrow"),
    ],
)
def test_group_of_a_kernel(kernel: str, group: str) -> None:
    assert kernel_groups.group_of(kernel) == group
