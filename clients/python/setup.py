"""Makes the protobuf and gRPC code of the wire contract (proto/ of the repository) while the package is built.

Nothing generated is committed. The dependencies follow from the tools that generated: older run times refuse the code.
"""

import importlib.metadata
import importlib.resources
import pathlib
import re
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"
FILES = ("longspan/v1/inference.proto", "longspan/v1/admin.proto")


def generate(target):
    """Writes longspan/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py below target."""
    from grpc_tools import protoc

    if not (PROTO / FILES[0]).exists():
        raise SystemExit(f"{PROTO} has no {FILES[0]}: build the package inside a checkout of the repository")
    target.mkdir(parents=True, exist_ok=True)
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{well_known}", *outputs, *FILES]) != 0:
        raise SystemExit("protoc failed, see above")
    (target / "longspan" / "v1" / "__init__.py").write_text('"""The wire contract as generated code."""\n')


def dependencies():
    """Protobuf promises that generated code works with its own major version and the next."""
    with tempfile.TemporaryDirectory() as folder:
        generate(pathlib.Path(folder))
        code = (pathlib.Path(folder) / "longspan" / "v1" / "inference_pb2.py").read_text()
    version = re.search(r"Protobuf Python Version: (\d+)\.(\d+)\.(\d+)", code)
    if version is None:
        raise SystemExit("the protoc of grpcio-tools does not say its version: use grpcio-tools 1.71 or newer")
    major = int(version.group(1))
    return [
        f"protobuf>={'.'.join(version.groups())},<{major + 2}",
        f"grpcio>={importlib.metadata.version('grpcio-tools')}",
        "googleapis-common-protos>=1.70",
        "jinja2>=3.1.4",
    ]


class BuildWithProtos(build_py):
    def run(self):
        super().run()
        generate(HERE / "src" if self.editable_mode else pathlib.Path(self.build_lib))


setup(cmdclass={"build_py": BuildWithProtos}, install_requires=dependencies())
