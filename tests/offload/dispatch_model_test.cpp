// SPDX-License-Identifier: Apache-2.0
// Device maps with the CPU and the disk.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/offload/models.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::DeviceMap;
using accelerate::DeviceMapStrategy;
using accelerate::dispatch_model;
using accelerate::init_empty_weights;
using accelerate::load_checkpoint_and_dispatch;
using offload_testing::deep_net;
using offload_testing::DeepNet;
using offload_testing::output_of;
using testing::refusal;
using testing::TemporaryFolder;

namespace {

const DeviceMap kHalfOnDisk{{"", "cpu"}, {"blocks.3", "disk"}, {"blocks.4", "disk"}, {"blocks.5", "disk"}};

std::string log_of(const auto& call) {
  std::string lines;
  const auto before =
      accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.append(line).append("\n"); });
  call();
  accelerate::base::set_log_handler(before);
  return lines;
}

}  // namespace

TEST_CASE("a model of init_empty_weights is loaded from each kind of checkpoint") {
  accelerate::Accelerator accelerator({.cpu = true});
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  const auto model = accelerator.prepare(net);
  accelerator.save_model(model, folder / "whole");
  accelerator.save_model(model, folder / "sharded", {.max_shard_size = "2MB"});
  accelerator.save_model(model, folder / "torch", {.safe_serialization = false});
  accelerator.save_state(folder / "state");
  for (const std::string name : {"whole", "whole/model.safetensors", "sharded", "sharded/model.safetensors.index.json",
                                 "torch", "torch/pytorch_model.bin", "state"}) {
    CAPTURE(name);
    DeepNet loaded = init_empty_weights([] { return DeepNet(); });
    load_checkpoint_and_dispatch(*loaded, folder / name, kHalfOnDisk,
                                 {.strict = true, .dispatch = {.offload_dir = folder.path / "offload" / name}});
    CHECK(at::equal(output_of(loaded), expected));
    CHECK(at::equal(output_of(loaded), expected));
  }
}

TEST_CASE("loading needs memory for the parameters on the CPU and two units") {
  const TemporaryFolder folder;
  accelerate::Accelerator accelerator({.cpu = true});
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  accelerator.save_model(accelerator.prepare(net), folder.path);
  const sharding_testing::CountedMemory memory;
  const int64_t before = memory.counts.held;
  DeepNet loaded = init_empty_weights([] { return DeepNet(); });
  memory.counts.peak = memory.counts.held;
  // The largest layer is reserved, and both small layers are before and after the blocks.
  const auto map = load_checkpoint_and_dispatch(*loaded, folder.path, DeviceMapStrategy::automatic,
                                                {.max_memory = {{"cpu", 4 * offload_testing::kUnitBytes}}});
  CHECK(map.at("blocks.0") == "cpu");
  CHECK(map.at("blocks.5") == "disk");
  CHECK(at::equal(output_of(loaded), expected));
  CHECK(memory.counts.peak - before < (4 + 2) * offload_testing::kUnitBytes);
}

TEST_CASE("a dtype that only the device map has is refused, because nothing is converted") {
  const TemporaryFolder folder;
  accelerate::Accelerator accelerator({.cpu = true});
  DeepNet net = deep_net();
  accelerator.save_model(accelerator.prepare(net), folder.path);
  const auto load = [&](const accelerate::DeviceMapOptions& options) {
    DeepNet loaded = init_empty_weights([] { return DeepNet(); });
    return refusal([&] { load_checkpoint_and_dispatch(*loaded, folder.path, DeviceMapStrategy::automatic, options); });
  };
  const auto text = [](const std::string& name) {
    return "load_checkpoint_and_dispatch: the dtype of " + name +
           " is Half in the options of the device map and Float in the model, and weights are not converted; leave it "
           "unset, or build the model with the dtype and load a checkpoint that has it";
  };
  CHECK(load({.max_memory = {{"cpu", "8MB"}}, .dtype = torch::kHalf}) == text("first.weight"));
  CHECK(load({.max_memory = {{"cpu", "8MB"}}, .special_dtypes = {{"head.bias", torch::kHalf}}}) == text("head.bias"));
  CHECK(load({.max_memory = {{"cpu", "8MB"}}, .dtype = torch::kFloat}).empty());
}

TEST_CASE("a model is dispatched to the CPU and a folder") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  CHECK(refusal([&] { dispatch_model(*net, kHalfOnDisk); }) ==
        "dispatch_model: the device map has \"disk\" for blocks.3, blocks.4, blocks.5; set offload_dir");
  dispatch_model(*net, kHalfOnDisk, {.offload_dir = folder.path});
  CHECK(at::equal(output_of(net), expected));
  CHECK(refusal([&] { dispatch_model(*net, kHalfOnDisk, {.offload_dir = folder.path}); }) ==
        "dispatch_model: parameter blocks.3.weight is sharded, offloaded or dispatched already");
  DeepNet plain = deep_net();
  dispatch_model(*plain, {{"", "cpu"}});
  CHECK(at::equal(plain(offload_testing::input()), expected));  // trains as before
}

TEST_CASE("invalid maps, devices and checkpoints are refused") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  accelerate::Accelerator accelerator({.cpu = true});
  accelerator.save_model(accelerator.prepare(net), folder.path);
  const auto dispatch = [&](const DeviceMap& map) { return refusal([&] { dispatch_model(*net, map); }); };
  CHECK(
      dispatch({{"", "gpu zero"}}) ==
      "device_map: \"gpu zero\" is not a device; expected the number of an accelerator device, a device as \"cuda:1\", "
      "\"cpu\" or \"disk\"");
  CHECK(dispatch({{"", "99999999999999"}}).starts_with("device_map: device 99999999999999 does not exist"));
  CHECK(dispatch({{"", "100"}}) == fmt::format("device_map: device 100 does not exist; this process has {} accelerator "
                                               "devices",
                                               at::accelerator::deviceCount()));
  CHECK(dispatch({{"blocks", "cpu"}}) ==
        "device_map: the map has no device for 5 tensors: first.weight, first.bias, head.weight, head.bias, scale; add "
        "their modules, or \"\" for the rest of the model");
  const auto load = [&](DeepNet other, const std::string& path, bool strict = false) {
    return refusal([&] { load_checkpoint_and_dispatch(*other, path, {{"", "disk"}}, {.strict = strict}); });
  };
  CHECK(load(DeepNet(7), folder.path.string()) ==
        "load_checkpoint_and_dispatch: " + folder.path.string() + " lacks the parameter blocks.6.weight");
  CHECK(load(DeepNet(5), folder.path.string(), true) ==
        "load_checkpoint_and_dispatch: the checkpoint has 2 tensors that the model lacks: blocks.5.bias, "
        "blocks.5.weight");
  CHECK(log_of([&] { CHECK(load(DeepNet(5), folder.path.string()).empty()); })
            .find("load_checkpoint_and_dispatch: the checkpoint has 2 tensors that the model lacks: blocks.5.bias, "
                  "blocks.5.weight") != std::string::npos);
  CHECK(load(DeepNet(), folder / "missing") ==
        "load_checkpoint_and_dispatch: " + (folder / "missing") + " cannot be opened: No such file or directory");
  accelerator.save_model(accelerator.prepare(net), folder / "torch", {.safe_serialization = false});
  CHECK(load(DeepNet(), folder / "torch") ==
        "load_checkpoint_and_dispatch: the device map has \"disk\" for the whole model; set offload_dir");
}
