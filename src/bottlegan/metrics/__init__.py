"""Quality of results: segmentation, calibration, image fidelity, and distance between sets of images."""
