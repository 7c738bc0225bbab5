"""Programs that train the bundled model.

Run them from the repository's root in this order. Each has --help.

    python examples/make_bundled_model/tokenizer.py --out runs/tokenizer                        #
    The image tokenizer. python examples/make_bundled_model/target.py --tokenizer runs/tokenizer
    --out runs/target   # Target and text encoder. python examples/train_drafter/drafter.py --target
    runs/target --out runs/drafter            # The drafter. python
    examples/make_bundled_model/picture.py --tokenizer runs/tokenizer --out runs/picture # The
    decoder to 256 pixels. python examples/make_bundled_model/classifier.py --out runs/classifier
    # Reads attributes. python examples/make_bundled_model/export.py --tokenizer runs/tokenizer ...
    --out FOLDER    # Puts the parts together. python examples/make_bundled_model/palette.py --model
    FOLDER                                # The mean colour of each token.

All train on scenes that `lanterns.py` draws; their words are those of `lantern_demo/scenes.py`.
docs/training.md has the sizes of the runs for the bundled weights. The loop, its options and its
checkpoints are those of `examples/train_drafter/run.py`.
"""
