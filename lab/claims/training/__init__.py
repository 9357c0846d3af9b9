"""What `validate training` states: measured steps, layer profiles, attention over context ranks."""
