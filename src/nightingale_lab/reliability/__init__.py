"""Long runs that try to break the server: soak, overload, memory growth, injected faults, and fuzzing."""
