"""Results beside the paper's numbers: checks, plots and reports."""
