"""Builds the package longspan as pip does, puts it first on the path, and serves a fake server to its tests."""

import atexit
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]


def build_package():
    """Installs the package into a folder, from a copy, so that the tree stays clean."""
    work = pathlib.Path(tempfile.mkdtemp(prefix="longspan-client-"))
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    shutil.copytree(ROOT / "proto", work / "proto")
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "v1")
    shutil.copytree(ROOT / "clients" / "python", work / "clients" / "python", ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    command += ["--no-compile", "--target", str(work / "site"), str(work / "clients" / "python")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError("pip could not install clients/python:\n" + done.stdout + done.stderr)
    return work / "site"


SITE = build_package()
sys.path.insert(0, str(SITE))
for name in [name for name in sys.modules if name.partition(".")[0] == "longspan"]:
    del sys.modules[name]  # bare stubs of other tests in this run

import pytest  # noqa: E402

from fake_server import FakeServer  # noqa: E402


@pytest.fixture
def fake():
    with FakeServer() as server:
        yield server


@pytest.fixture(scope="session")
def site():
    """The folder that the package is installed in."""
    return SITE
