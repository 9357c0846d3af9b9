"""Pipeline schedules: which task each rank runs next, and when tasks that wait for others end."""
