"""Operations on tensors: one contract, a native implementation and a slow twin."""
