"""What is not known for sure: functions of which a few values are known."""
