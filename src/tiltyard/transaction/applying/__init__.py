"""How each operation changes a manifest, one idea a module; ``transaction.apply`` is the door."""
