"""From a checked request to the engine and back to texts of choices."""
