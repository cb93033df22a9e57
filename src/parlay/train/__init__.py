"""Training of draft heads for a target: data, the target as the teacher, a resumable run, public formats out."""
