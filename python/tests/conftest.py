"""The tests run on the installed package; in the source tree scripts/setup.sh points .venv at the
build folder's."""

import pytest

try:
    import deltaworks  # noqa: F401
except ImportError as reason:
    pytest.exit(f"{reason}: run scripts/setup.sh", returncode=1)
