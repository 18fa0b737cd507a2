"""The next manifest: what each operation makes of the one before."""
