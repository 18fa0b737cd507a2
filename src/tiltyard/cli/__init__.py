"""The command line: the commands, and their two outputs. Uses the public names of Tiltyard alone.

A command is a function with a ``Session``, which opens the table, sends the answer to an output and turns errors into exit codes.

Commands
    ``app``                    puts them together; ``log``, ``show``, ``check``, ``cat``
    ``row_commands``           append, delete, update, merge; ``row_files`` reads their rows
    ``column_commands``        columns; ``setting_commands`` config; ``base_commands`` bases and clones
    ``index_commands``         indices
    ``ref_commands``           tags and branches
    ``maintenance_commands``   compact, cleanup, restore, diff
    ``conflict_commands``      the conflict table; ``explain_command`` the story of one transaction
    ``lake_commands``          lakes; ``lake_ref_commands`` their tags and branches; ``lake_recovery`` backup, restore, rebuild, upgrade
    ``lake_merge_commands``    comparing branches of a lake and bringing them together; ``lake_timeline_command`` draws its history
    ``pipeline_command``       pipelines
    ``server_commands``        serve, tokens, and upkeep
What they share
    ``command_session``        ``Session``, exit codes
    ``option_types``           options that commands share
    ``facts``                  what a command found, before it is shown
    ``messages``               what a command says that changes something
    ``output``                 JSON for programs; ``text_output`` text for people
    ``layout``                 columns on a page; ``cells`` values as text, safe for a terminal

Each error ends in its exit code, with the message and the advice on standard error.
"""

from tiltyard.cli.app import main

__all__ = ["main"]
