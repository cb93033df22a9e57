"""From messages to tokens and back: tokenizers, chat templates, detokenising. Nothing here imports torch."""
