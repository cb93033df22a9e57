"""The kernels for a GPU, in Triton; without one they run in Triton's interpreter, which is how they are tested."""
