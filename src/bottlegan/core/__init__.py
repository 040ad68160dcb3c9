"""The foundation: errors, configurations, files, random numbers, progress."""
