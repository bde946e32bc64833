"""The ingress's side of the engine: submitting requests, reading their output, keeping leases."""
