"""Pipeline schedules: the task order of each rank, and end times of dependent tasks."""
