"""Programs that train the bundled model. Run them from the repository's root in this order. Each has --help.

    python examples/make_bundled_model/emoji.py --sheet runs/nouns.png                # downloads the nouns' pictures
    python examples/make_bundled_model/render.py --out runs/scenes.png                # draws scenes of them
    python examples/make_bundled_model/tokenizer.py --out runs/tokenizer              # image tokenizer and picture decoder
    python examples/make_bundled_model/target.py --tokenizer runs/tokenizer --out runs/target     # target and text encoder
    python -m lantern_demo.training.drafter --target runs/target --out runs/drafter   # the drafter, part of the package
    python examples/make_bundled_model/classifier.py --out runs/classifier            # reads attributes, for `bench quality`
    python examples/make_bundled_model/export.py --tokenizer runs/tokenizer ... --out FOLDER      # puts the parts together
    python examples/make_bundled_model/facts.py --model FOLDER                        # colours of tokens, true scenes

docs/training.md has the sizes of the runs for the bundled weights. The loop, its options and its checkpoints are those of
`lantern_demo/training/run.py`.
"""
