"""Steps as captured CUDA graphs."""
