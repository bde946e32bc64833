"""Matrix products with few rows, where reading the weights takes the time."""
