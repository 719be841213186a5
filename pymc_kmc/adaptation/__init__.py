"""What the step methods learn while tuning."""
