"""``python -m cojax``."""

from cojax.cli import main

main(prog_name="cojax")
