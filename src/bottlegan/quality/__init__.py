"""Quality of users' own images: scores, stain drift, and reports."""
