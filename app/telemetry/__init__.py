"""What the server tells its operators: metrics, traces and log lines."""
