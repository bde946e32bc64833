"""What Ray Serve runs: deployments, routing, scaling."""
