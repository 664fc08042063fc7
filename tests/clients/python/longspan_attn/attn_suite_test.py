"""scripts/flash-attn-suite on a small suite of our own with flash-attention's layout: what counts as what. The real
suite needs a GPU and its checkout."""

import importlib.machinery
import json
import pathlib
import subprocess
import sys
import types

import pytest

pytest.importorskip("torch", reason="torch is not installed: the drop-in for PyTorch is not tested")

SCRIPT = pathlib.Path(__file__).resolve().parents[4] / "scripts" / "flash-attn-suite"

SUITE = '''
import pytest, torch
from flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import _get_block_size_n, USE_TRITON_ROCM
from flash_attn.bert_padding import helper

X = torch.zeros(1, 2, 2, 64, dtype=torch.float16, device="meta")

@pytest.mark.parametrize("a", range(100))
@pytest.mark.parametrize("b,c", [(i, -i) for i in range(100)])
def test_flash_attn_output(a, b, c):
    assert helper() == 1 and b == -c
    q, k = X.clone().requires_grad_(), X.clone().requires_grad_()
    out, lse, probs = flash_attn_func(q, k, k, 0.0, causal=True, return_attn_probs=True)
    dq, dk = torch.autograd.grad(out, (q, k), torch.ones_like(out))
    assert out.shape == X.shape and lse.shape == (1, 2, 2) and probs is None and dq.shape == X.shape

@pytest.mark.parametrize("dropout_p", [0.17, 0.0])
def test_flash_attn_varlen_output(dropout_p):
    flash_attn_kvpacked_func(X, torch.stack([X, X], 2), dropout_p)

def test_flash_attn_causal():
    dq, dq_ref = 1, 2
    assert dq == dq_ref

def test_flash_attn_varlen_causal():
    out = 3
    assert out == 2

def test_flash_attn_splitkv():
    pytest.skip("not here")

def test_flash_attn_kvcache():
    flash_attn_with_kvcache(X[0], X, X)

def test_flash_attn_bwd_overflow():
    raise SystemError("not ours to run")
'''


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "tests" / "test_flash_attn.py").write_text(SUITE)
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise SystemError('the suite imports ours')")
    (tmp_path / "flash_attn" / "bert_padding.py").write_text("def helper():\n    return 1\n")
    return tmp_path


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


def test_outcomes_are_told_apart(checkout):
    done = run(checkout, "--sample", 30, "--json", checkout / "out.json")
    result = json.loads((checkout / "out.json").read_text())
    assert result["counts"] == {
        "test_flash_attn_output": {"passed": 30},
        "test_flash_attn_varlen_output": {"not applicable": 1, "passed": 1},
        "test_flash_attn_causal": {"passed forward": 1},
        "test_flash_attn_varlen_causal": {"failed": 1},
        "test_flash_attn_splitkv": {"not applicable": 1},
        "test_flash_attn_kvcache": {"failed": 1},
    }, done.stdout + done.stderr
    assert result["sets"]["test_flash_attn_output"] == 10000
    assert "dropout_p=N: dropout is not supported, only N" in result["reasons"]["not applicable"]
    assert "skipped by the suite: Skipped: not here" in result["reasons"]["not applicable"] or (
        "skipped by the suite: not here" in result["reasons"]["not applicable"])
    assert any("ArgumentError: longspan_attn: q has 3 dimensions" in reason for reason in result["reasons"]["failed"])
    assert done.returncode == 1, "failures"


def test_the_time_limit_leaves_tests_out(checkout):
    out = checkout / "out.json"
    done = run(checkout, "--only", "test_flash_attn_output", "--seconds", 0.000001, "--sample", 3, "--json", out)
    assert json.loads(out.read_text())["counts"] == {"test_flash_attn_output": {"not run": 3}}, done.stdout
    assert done.returncode == 0


def test_a_sample_is_drawn_from_the_whole_product():
    loader = importlib.machinery.SourceFileLoader("flash_attn_suite", str(SCRIPT))
    script = types.ModuleType(loader.name)
    script.__file__ = str(SCRIPT)
    loader.exec_module(script)
    marks = [pytest.mark.parametrize("a", range(7)).mark,
             pytest.mark.parametrize(["b", "c"], [(i, -i) for i in range(5)]).mark]

    def draw(number, seed):
        total, mark = script.sampled(marks, number, seed, pytest.mark.parametrize)
        assert total == 35 and mark.args[0] == ["a", "b", "c"]
        return mark.args[1]

    assert draw(9, 1) == draw(9, 1) != draw(9, 2)
    assert len(set(draw(9, 1))) == 9 and all(b == -c for _, b, c in draw(9, 1))
    assert sorted(draw(99, 0)) == sorted((a, b, -b) for a in range(7) for b in range(5))


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2 and "no checkout of flash-attention" in done.stderr
