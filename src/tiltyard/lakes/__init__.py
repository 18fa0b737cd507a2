"""What a lake is made of: handles on its tables, transactions over several of them, cuts, recovery and upkeep."""
