"""The machine and the code that results come from."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

import cojax


def machine() -> dict[str, Any]:
    """Device, platform, versions and commit; JSON data."""
    return {
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "platform": platform.platform(),
        "versions": {
            "cojax": cojax.__version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "numpy": np.__version__,
        },
        "git": git_revision(),
    }


def git_revision() -> str | None:
    """The commit the package was imported from, with "+" where files differ; None outside git."""
    root = Path(cojax.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
        )
        done.check_returncode()
        return done.stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", "__init__.py")
        changed = git("status", "--porcelain", "--untracked-files=no", str(root))
        return git("rev-parse", "HEAD") + ("+" if changed else "") if tracked else None
    except (OSError, subprocess.SubprocessError):
        return None
