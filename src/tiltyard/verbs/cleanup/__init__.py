"""Cleanup of one table: old versions and uncommitted files, while others read and write.

    ``run_cleanup``       ``cleanup_table``: plans, records, deletes, reports
    ``cleanup_plan``      what would be deleted and why; changes nothing
    ``foreign_writers``   what stays because writers of other software may have stalled
    ``cleanup_records``   records written before the first deletion, so that an interrupted cleanup is finished by the next
    ``abandoned_files``   files of processes that died, known by their age alone
    ``auto_cleanup``      after every so many commits, as the config says

A file is deleted only if no version, tag, branch or open transaction names it. What cannot be understood stays and is reported. Writers
that built on a removed version get ``HistoryUnavailable``.
"""
