"""Tables as Parquet files, with checksums: a damaged file is refused and never read as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cojax import errors
from cojax.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def write(frame: pd.DataFrame, file: Path) -> None:
    """Write a ``frame``, without its index, to the ``file``."""
    frame.to_parquet(file, index=False, write_page_checksum=True)


def read(file: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The table in a ``file``, or some ``columns`` of it.

    Raises InputError, one line, for a file that is damaged or no table.
    """
    import pandas as pd

    chosen = None if columns is None else list(columns)
    try:
        return pd.read_parquet(file, columns=chosen, page_checksum_verification=True)
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except Exception as error:  # what a damaged header makes of a reader is not to be foreseen
        raise InputError(f"{file}: damaged: {errors.one_line(error)}") from None
