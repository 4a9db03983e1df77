"""No exporter writes a graph whose lookups would be those of another process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, subclassed

import kvemb.keras as kk

BACKEND = keras.backend.backend()
IDS = np.array([[1, 2, 3]], np.int32)


def exporters(model, place):
    """Every way to write a graph of a model."""
    if BACKEND == "torch":
        import torch

        ids = torch.from_numpy(IDS)
        yield lambda: torch.export.export(model, (ids,))
        yield lambda: torch.jit.trace(model, (ids,))
        return
    yield lambda: model.export(str(place / "exported"), verbose=False)
    if BACKEND == "jax":
        import jax

        yield lambda: jax.export.export(jax.jit(lambda ids: model(ids)))(IDS)
        return
    import tensorflow as tf

    def archive():
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", lambda ids: model(ids), [tf.TensorSpec((None, 3), tf.int32)])
        archive.write_out(str(place / "archive"), verbose=False)

    yield archive
    yield lambda: tf.saved_model.save(model, str(place / "saved"))


@pytest.mark.needs("tensorflow")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [classifier, subclassed])
def test_exporters_are_refused(words, tmp_path, make):
    model = make(kk.Embedding(words))
    model.predict(IDS, verbose=0)
    for export in exporters(model, tmp_path):
        with pytest.raises(Exception, match=r"this exporter cannot reach .*: export the model with kvemb\.keras"):
            export()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: a graph that was traced before it is saved")
def test_a_graph_that_was_traced_before_is_not_saved(words, tmp_path):
    import tensorflow as tf

    model = classifier(kk.Embedding(words))
    module = tf.Module()
    module.serve = tf.function(lambda ids: model(ids))
    module.dense = model.layers[-1].weights
    module.serve.get_concrete_function(tf.TensorSpec((None, 3), tf.int32))
    with pytest.raises(Exception, match=r"this exporter cannot reach|rows_of_kvemb_cannot_be_exported"):
        tf.saved_model.save(module, str(tmp_path / "saved"))
