"""The paper's figures on the real engine, and the simulator beside it on the same traces."""
