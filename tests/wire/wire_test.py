"""The wire contract: proto/ is lint-clean and compatible with the committed image baseline.binpb.

Clients in the field speak the baseline. After a release that adds fields, renew it with
    python tests/wire/wire_test.py --write
which refuses when the change would break them. Needs no server and no network.
"""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
BASELINE = pathlib.Path(__file__).with_name("baseline.binpb")
INFERENCE = "longspan/v1/inference.proto"
ADMIN = "longspan/v1/admin.proto"


def buf(*arguments, folder=PROTO):
    """Runs buf in a copy of proto/ or in proto/ itself; the wheel puts it beside the interpreter."""
    beside = pathlib.Path(sys.executable).with_name("buf")
    program = str(beside) if beside.exists() else shutil.which("buf")
    if program is None:
        pytest.skip("buf is missing: pip install -r tests/requirements.txt")
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)


def breaking(folder):
    return buf("breaking", "--against", str(BASELINE), folder=folder)


def write_baseline():
    result = breaking(PROTO) if BASELINE.exists() else None
    if result is not None and result.returncode != 0:
        sys.exit("not written, the change breaks the wire:\n" + result.stdout + result.stderr)
    result = buf("build", "--exclude-source-info", "-o", str(BASELINE))
    sys.exit(result.stderr or 0)


@pytest.fixture
def changed_proto(tmp_path):
    """change(file, old, new) edits a copy of proto/ and returns its folder."""
    folder = tmp_path / "proto"
    shutil.copytree(PROTO, folder)

    def change(file, old, new):
        text = (folder / file).read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
        (folder / file).write_text(text.replace(old, new))
        return folder

    return change


def test_proto_is_lint_clean():
    result = buf("lint")
    assert result.returncode == 0, result.stdout + result.stderr


def test_proto_does_not_break_the_baseline():
    result = breaking(PROTO)
    assert result.returncode == 0, result.stdout + result.stderr


def test_baseline_is_small():
    assert 0 < BASELINE.stat().st_size < 20_000


BREAKS = {
    "renumbered field": (INFERENCE, "optional int32 top_k = 2;", "optional int32 top_k = 20;"),
    "other type": (INFERENCE, "optional float top_p = 3;", "optional string top_p = 3;"),
    "no longer repeated": (INFERENCE, "repeated string bad_words = 11;", "optional string bad_words = 11;"),
    "renamed field": (INFERENCE, "optional bool ignore_eos = 5;", "optional bool skip_eos = 5;"),
    "removed field": (INFERENCE, "  optional int32 priority = 11;\n", ""),
    "moved into a oneof": (
        INFERENCE,
        "  optional double estimated_delay_seconds = 2;",
        "  oneof delay { double estimated_delay_seconds = 2; }",
    ),
    "renumbered enum value": (INFERENCE, "FINISH_REASON_LENGTH = 2;", "FINISH_REASON_LENGTH = 4;"),
    "removed call": (INFERENCE, "  rpc Abort(AbortRequest) returns (AbortResponse);\n", ""),
    "no longer streaming": (INFERENCE, "returns (stream GenerateResponse)", "returns (GenerateResponse)"),
    "other answer": (ADMIN, "returns (DrainResponse)", "returns (ListRequestsResponse)"),
    "other package": (ADMIN, "package longspan.v1;", "package longspan.v2;"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_breaking_change_is_caught(what, changed_proto):
    result = breaking(changed_proto(*BREAKS[what]))
    assert result.returncode != 0, f"{what} went unnoticed"
    assert ".proto" in result.stdout, result.stdout + result.stderr


COMPATIBLE = {
    "added field": (INFERENCE, "optional int32 top_k = 2;", "optional int32 top_k = 2; optional int32 extra = 99;"),
    "added call": (
        INFERENCE,
        "rpc Abort(AbortRequest) returns (AbortResponse);",
        "rpc Abort(AbortRequest) returns (AbortResponse); rpc AbortAgain(AbortRequest) returns (AbortResponse);",
    ),
    "reserved field": (INFERENCE, "optional int32 priority = 11;", 'reserved 11; reserved "priority";'),
}


@pytest.mark.parametrize("what", COMPATIBLE)
def test_a_compatible_change_passes(what, changed_proto):
    result = breaking(changed_proto(*COMPATIBLE[what]))
    assert result.returncode == 0, result.stdout + result.stderr


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write_baseline()
