"""What each figure of the paper is made of: models, workloads, systems and request rates."""
