"""Programs that make the bundled model.

docs/training.md has the commands. In their order they are:

    emoji      Fetches the pictures of everyday things.
    train      Trains all networks, on one GPU.
    networks   The networks in training; writes them as a model folder.
    palette    Adds the mean colour of each token to the folder.

and use:

    folder     Writes model folders.
    world      Captions of scenes.
    scenes     Samples and draws scenes.
    landscape  Draws what is behind: lake, hills or plain, and sky.
    lanterns   Draws paper lanterns.

The words of scenes are those of `lantern_demo/scenes.py`. `examples/train_drafter/drafter.py`
trains another drafter for a model folder.
"""
