"""``python -m tiltyard.cli``, for where the script ``tiltyard`` is not on the path."""

from tiltyard.cli.app import main

main()
