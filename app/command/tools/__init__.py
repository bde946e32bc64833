"""Commands that need no server: config, models, doctor, completion, version, benchmarks."""
