"""What runs in a step: queues, admission, plans, preemption, release."""
