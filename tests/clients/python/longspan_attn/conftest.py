"""Puts the package longspan_attn of the tree on the path, and stands a slow launch in for the library's.

These tests need torch, without a GPU, and skip without it; pytest --confcutdir of this folder leaves out the other
package's set-up. The library, where a test needs it, is the one that LONGSPAN_ATTN_LIBRARY names.
"""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "clients" / "python" / "longspan_attn" / "src"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))


@pytest.fixture
def slow(monkeypatch):
    """Calls end in slow_library.launch, on CPU tensors; answers the list of calls made."""
    import slow_library
    from longspan_attn import _attend, _checks, _plan

    calls = []

    def launch(call, lengths, q, **options):
        calls.append((type(call).from_buffer_copy(call), lengths))
        slow_library.launch(call, lengths, **options)

    monkeypatch.setattr(_attend, "launch", launch)
    monkeypatch.setattr(_checks, "on_gpu", lambda q: None)
    monkeypatch.setattr(_plan, "is_capturing", lambda: False)
    return calls


@pytest.fixture
def library():
    from longspan_attn import _library

    try:
        return _library.load()
    except _library.LibraryError as error:
        pytest.skip(str(error))
