"""The page and the API. Gradio is used here and nowhere else."""
