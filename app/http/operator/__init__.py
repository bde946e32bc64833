"""What only operators may read and change."""
