"""A catalog lost, behind or restored: back from a backup or from the files."""
