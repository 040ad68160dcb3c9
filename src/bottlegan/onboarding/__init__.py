"""Onboarding: from a few images of an unseen lab to its style code, and to how far it can be trusted."""
