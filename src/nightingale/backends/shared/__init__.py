"""Code shared by the CPU backends: quantization, packed weights, prompt inputs."""
