"""What everything stands on: errors, configurations, files, random numbers, progress."""
