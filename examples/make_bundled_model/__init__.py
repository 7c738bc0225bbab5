"""Programs that make the bundled model.

docs/training.md has the commands. In their order they are:

    emoji         Fetches the pictures of everyday things.
    train         Trains all networks but the image tokenizer, on a processor or a GPU.
    networks      The networks in training; writes them as a model folder.
    palette       Adds the mean patch and colour of each token to the folder.

and use:

    run           A run's clock, log and files, and how a stage learns.
    bank          Scenes as soft codes, with captions.
    target_loss   The loss of the target.
    picture_loss  What the picture decoder learns.
    compiled      The target's layers as one compiled function.
    check         Measures of a trained model.
    folder        Writes model folders.
    world         Captions of scenes.
    scenes        Samples and draws scenes.
    landscape     Draws what is behind: lake, hills or plain, and sky.
    lanterns      Draws paper lanterns.

The words of scenes are those of `lantern_demo/scenes.py`. `examples/train_drafter/drafter.py`
trains another drafter for a model folder.
"""
