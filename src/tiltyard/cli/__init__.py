"""The command line: look at tables without writing a program."""

from tiltyard.cli.app import main

__all__ = ["main"]
