"""Networks: generators, critics, style codes, and the paradigms that combine them."""
