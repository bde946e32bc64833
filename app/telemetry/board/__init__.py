"""What is made of the metrics for operators: a board, alerts and a page of the docs."""
