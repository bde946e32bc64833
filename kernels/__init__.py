"""The device border: one backend protocol, a torch reference, CPU and GPU kernels."""
