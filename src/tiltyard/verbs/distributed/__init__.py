"""Work of a verb in other processes: they read and write files, one process commits."""
