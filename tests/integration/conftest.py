"""Fixtures of the integration tests: generated stubs, model folders, servers.

LONGSPAN_SERVER_BINARY names the binary; without it the one of the default build folder is used.
"""

import atexit
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import types

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.environ.get("LONGSPAN_SERVER_BINARY", os.path.join(ROOT, "build", "cpu", "server", "longspan-server"))


def generate_stubs():
    """Python code of the wire contract, made anew for each run; the client package's own when it is there."""
    try:
        importlib.import_module("longspan.v1.admin_pb2_grpc")
        return
    except ImportError:
        sys.modules.pop("longspan", None)
    folder = tempfile.mkdtemp(prefix="longspan-stubs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    protos = ["longspan/v1/inference.proto", "longspan/v1/admin.proto"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}/proto", f"--python_out={folder}",
         f"--grpc_python_out={folder}", *protos],
        check=True,
    )
    sys.path.insert(0, folder)


generate_stubs()
sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import harness  # noqa: E402
import write_tiny_model  # noqa: E402


@pytest.fixture(scope="session")
def protos():
    """The generated modules: messages and stubs of longspan.v1.Inference."""
    return types.SimpleNamespace(messages=harness.inference_pb2, stubs=harness.inference_pb2_grpc)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """write(name, **options) -> folder; each distinct one is written once."""
    written = {}

    def write(name, **options):
        key = repr((name, sorted(options.items())))
        if key not in written:
            folder = str(tmp_path_factory.mktemp(name))
            write_tiny_model.write_model(name, folder, **options)
            written[key] = folder
        return written[key]

    return write


@pytest.fixture(scope="session")
def toy(models):
    return models("toy_t")


@pytest.fixture(scope="session")
def launch():
    """launch(model, **flags) -> Server, as a context manager."""
    if not os.path.exists(BINARY):
        pytest.skip(f"no server binary at {BINARY}: set LONGSPAN_SERVER_BINARY")

    def start(model, **flags):
        return harness.Server(BINARY, model, **flags)

    start.binary = BINARY
    return start


@pytest.fixture(scope="module")
def shared(launch, toy):
    """One server on toy T for the tests of a file; steps take 2 ms at least, so that "mid-decode" can be hit."""
    with launch(toy, step_delay_ms=2, slow_reader_timeout=1, max_pending_tokens=16, keepalive_time=1,
                keepalive_timeout=1) as server:
        server.remember_canary()
        yield server


@pytest.fixture
def server(shared):
    """The shared server; the health triple is checked after every test."""
    yield shared
    shared.check_health()


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: measures time, or takes a minute; run by scripts/test --all")
