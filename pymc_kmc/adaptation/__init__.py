"""What is learned while tuning."""
