"""How good a result is: segmentation, calibration, image fidelity, and distance between sets of images."""
