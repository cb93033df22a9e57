"""What the native module asks torch for when it is imported: names of dtypes."""

float32, float64, float16, bfloat16, int32, int64, uint8 = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "uint8",
)
