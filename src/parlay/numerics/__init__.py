"""What bits of outputs depend on: self-checks, digests of files, and the name of all of it."""
