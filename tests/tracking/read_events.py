# SPDX-License-Identifier: Apache-2.0
"""read_events.py <tracked_run>: reads its logged values with TensorBoard's own reader."""
import io
import math
import subprocess
import sys
import tempfile

from PIL import Image
from tensorboard.backend.event_processing import event_accumulator, plugin_event_multiplexer
from tensorboard.plugins.hparams import metadata, plugin_data_pb2


def same(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: {got!r}, must be {expected!r}")


def pixels(event):
    return list(Image.open(io.BytesIO(event.encoded_image_string)).get_flattened_data())


def check_scalars(run):
    loss = run.Scalars("loss")
    same("steps of loss", [event.step for event in loss], list(range(1000)))
    for event in loss:
        if not math.isclose(event.value, 1 / (event.step + 1), rel_tol=1e-6):
            sys.exit(f"loss at {event.step} is {event.value}")
    same("a group", [run.Scalars(f"accuracy/{tag}")[0].value for tag in ("train", "test")], [0.75, 0.5])
    same("infinity", run.Scalars("odd")[0].value, math.inf)
    same("a tag that is not UTF-8", run.Scalars("\ufffd")[0].value, 1.0)
    same("without a step", run.Scalars("without")[0].step, 1002)


def check_text(run):
    (event,) = run.Tensors("sample/text_summary")
    same("text", (event.step, event.tensor_proto.string_val[0].decode()), (5, "a **cat** \ufffd("))
    same("plugin of text", run.SummaryMetadata("sample/text_summary").plugin_data.plugin_name, "text")


def check_images(run):
    (image,) = run.Images("red and blue")
    same("image", (image.step, image.width, image.height), (6, 2, 1))
    same("pixels", pixels(image), [(255, 0, 0), (0, 0, 255)])
    same("grey", pixels(run.Images("greys/0")[0]), [7])
    same("grey and alpha", pixels(run.Images("greys/1")[0]), [(9, 255)])


def check_histogram(run):
    (event,) = run.Histograms("weights")
    value = event.histogram_value
    same("histogram", (event.step, value.min, value.max, value.num, value.sum, value.sum_squares), (7, -1, 2, 4, 2, 5.5))
    same("counts", sum(value.bucket), 4)
    same("buckets", len(value.bucket), len(value.bucket_limit))


def hparams_of(folder):
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder)
    multiplexer.Reload()
    tags = multiplexer.PluginRunToTagToContent(metadata.PLUGIN_NAME)["digits"]
    return {tag: metadata._parse_plugin_data_as(content, kind) for tag, kind in (
        ("_hparams_/session_start_info", "session_start_info"), ("_hparams_/experiment", "experiment"),
        ("_hparams_/session_end_info", "session_end_info")) for content in [tags[tag]]}


def check_hparams(folder):
    data = hparams_of(folder)
    values = data["_hparams_/session_start_info"].hparams
    same("names", sorted(values), ["fast", "layers", "lr", "net"])
    same("hparams", (values["lr"].number_value, values["layers"].number_value, values["net"].string_value,
                     values["fast"].bool_value), (0.5, 2.0, 'basic: "a"', True))
    same("experiment", sorted(info.name for info in data["_hparams_/experiment"].hparam_infos), sorted(values))
    same("status", data["_hparams_/session_end_info"].status, 1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], folder], check=True)
        run = event_accumulator.EventAccumulator(folder + "/digits", {"scalars": 0, "images": 0})
        run.Reload()
        check_scalars(run)
        check_text(run)
        check_images(run)
        check_histogram(run)
        check_hparams(folder)
    print("TensorBoard reads what was logged")


main()
