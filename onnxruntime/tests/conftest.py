from pathlib import Path

import pytest
import support


def pytest_sessionstart(session):
    if not Path(support.LIBRARY).is_file():
        pytest.exit(f"{support.LIBRARY} is missing: run scripts/setup.sh", returncode=1)
