// SPDX-License-Identifier: Apache-2.0
// Device maps with the CPU and the disk.
#include "tests/testing.hpp"
//
#include <optional>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/weights.hpp"
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

void save(const torch::nn::Module& net, const std::filesystem::path& path) {
  accelerate::checkpoint::NamedTensors tensors;
  for (const auto& list : {net.named_parameters(), net.named_buffers()}) {
    for (const auto& tensor : list) tensors.emplace_back(tensor.key(), tensor.value());
  }
  accelerate::checkpoint::save_file(path, tensors, "test");
}

DeepNet empty_net(c10::ScalarType dtype) {
  return init_empty_weights([&] {
    DeepNet net;
    net->to(dtype);
    return net;
  });
}

bool same(const at::Tensor& found, const at::Tensor& expected) {
  return found.dtype() == expected.dtype() && at::equal(found, expected);
}

void check_converted(const torch::nn::Module& loaded, const torch::nn::Module& saved, c10::ScalarType dtype) {
  for (const bool buffers : {false, true}) {
    const auto found = buffers ? loaded.named_buffers() : loaded.named_parameters();
    for (const auto& tensor : buffers ? saved.named_buffers() : saved.named_parameters()) {
      CAPTURE(tensor.key());
      CHECK(same(found[tensor.key()], tensor.value().to(dtype)));
    }
  }
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

TEST_CASE("values are converted to the dtype of the model or the options, on the CPU and from the disk") {
  const TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  DeepNet net = deep_net();
  for (const auto saved : {torch::kFloat, torch::kDouble, torch::kHalf}) {
    net->to(saved);
    for (const std::string name : {"model.safetensors", "model.bin"}) {
      const auto path = folder.path / name;
      save(*net, path);
      for (const auto built : {torch::kFloat, torch::kBFloat16}) {
        for (const bool asks : {false, true}) {
          const auto asked = asks ? std::optional(torch::kHalf) : std::nullopt;
          CAPTURE(path);
          CAPTURE(saved);
          CAPTURE(built);
          CAPTURE(asks);
          DeepNet loaded = empty_net(built);
          load_checkpoint_and_dispatch(
              *loaded, path, kHalfOnDisk,
              {.strict = true, .dtype = asked, .dispatch = {.offload_dir = folder.path / "offload"}});
          check_converted(*loaded, *net, asked.value_or(built));
        }
      }
    }
  }
}

TEST_CASE("offloaded buffers are converted, and a model is trained after a load with another dtype") {
  const TemporaryFolder folder;
  DeepNet net = deep_net(), loaded = empty_net(torch::kFloat), trained = empty_net(torch::kHalf);
  save(*net, folder.path / "model.safetensors");
  load_checkpoint_and_dispatch(*loaded, folder.path, {{"", "disk"}},
                               {.dtype = torch::kHalf, .dispatch = {.offload_buffers = true}});
  load_checkpoint_and_dispatch(*trained, folder.path, {{"", "cpu"}}, {.dtype = torch::kFloat});
  {
    const torch::NoGradGuard no_grad;
    check_converted(*loaded, *net, torch::kHalf);
  }
  trained(offload_testing::input()).sum().backward();
  net(offload_testing::input()).sum().backward();
  CHECK(at::equal(trained->head->weight.grad(), net->head->weight.grad()));
}

TEST_CASE("integers keep their dtype, and special_dtypes have precedence") {
  struct OddNetImpl : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", torch::randn({3}));
    at::Tensor norm = register_parameter("norm", torch::randn({3}));
    at::Tensor order = register_parameter("order", torch::zeros({3}, torch::kLong), /*requires_grad=*/false);
    at::Tensor steps = register_buffer("steps", torch::zeros({2}, torch::kInt));
    at::Tensor later = register_buffer("later", torch::ones({2}));
  };
  const TemporaryFolder folder;
  const auto path = folder.path / "model.safetensors";
  const auto weight = torch::randn({3}, torch::kDouble), norm = torch::randn({3}, torch::kDouble);
  accelerate::checkpoint::save_file(path,
                                    {{"weight", weight},
                                     {"norm", norm},
                                     {"order", torch::tensor({2, 0, 1}, torch::kInt)},
                                     {"steps", torch::tensor({1.0, -2.75})}},
                                    "test");
  for (const std::string place : {"cpu", "disk"}) {
    CAPTURE(place);
    OddNetImpl net;
    load_checkpoint_and_dispatch(net, path, {{"", place}},
                                 {.dtype = torch::kHalf, .special_dtypes = {{"norm", torch::kFloat}}});
    const torch::NoGradGuard no_grad;
    CHECK(same(net.weight, weight.to(torch::kHalf)));
    CHECK(same(net.norm, norm.to(torch::kFloat)));
    CHECK(same(net.order, torch::tensor({2, 0, 1}, torch::kLong)));
    CHECK(same(net.steps, torch::tensor({1, -2}, torch::kInt)));
    CHECK(same(net.later, torch::ones({2})));  // not in the checkpoint
  }
  OddNetImpl net;
  CHECK(refusal([&] {
          load_checkpoint_and_dispatch(net, path, {{"", "cpu"}}, {.strict = true});
        }) == "load_checkpoint_and_dispatch: the checkpoint lacks buffers of the model: later");
  const auto refused = [&](const accelerate::LoadDispatchOptions& options) {
    return refusal([&] { load_checkpoint_and_dispatch(net, path, {{"", "cpu"}}, options); });
  };
  CHECK(refused({.dtype = torch::kInt}) ==
        "load_checkpoint_and_dispatch: dtype is Int, must be a floating-point dtype");
  CHECK(refused({.special_dtypes = {{"norms", torch::kHalf}}}) ==
        "load_checkpoint_and_dispatch: special_dtypes has norms, which the model lacks; use the first name of a "
        "parameter or buffer");
  CHECK(refused({.special_dtypes = {{"norm", torch::kInt}}}) ==
        "load_checkpoint_and_dispatch: special_dtypes has Int for norm, which requires a gradient and must have a "
        "floating-point dtype");
  CHECK(net.weight.dtype() == torch::kFloat);
}

TEST_CASE("a read that fails leaves each tensor with values, and the load can be repeated") {
  const TemporaryFolder folder;
  const auto path = folder.path / "model.safetensors";
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto write = [&] {
    accelerate::checkpoint::save_file(path,
                                      {{"0.weight", torch::full({4, 4}, 1.0)},
                                       {"0.bias", torch::full({4}, 2.0)},
                                       {"1.weight", torch::full({4, 4}, 3.0)},
                                       {"1.bias", torch::full({4}, 4.0)},
                                       {"unknown", torch::zeros({1})}},
                                      "test");
  };
  const auto load = [&] {
    load_checkpoint_and_dispatch(*net, path, {{"0", "disk"}, {"1", "cpu"}}, {.dtype = torch::kDouble});
  };
  write();
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  // The warning of the unknown tensor is logged after the file was opened.
  const auto handler = accelerate::base::set_log_handler([&](auto, auto) { std::filesystem::resize_file(path, 8); });
  const std::string text = refusal(load);
  accelerate::base::set_log_handler(handler);
  CHECK_MESSAGE(text.find("it was changed after it was opened") != std::string::npos, text);
  for (size_t i = 0; i < before.size(); ++i) CHECK(same(net->parameters()[i], before[i]));
  write();
  (void)log_of(load);
  const torch::NoGradGuard no_grad;
  CHECK(same(net->parameters()[0], torch::full({4, 4}, 1.0, torch::kDouble)));
  CHECK(same(net->parameters()[3], torch::full({4}, 4.0, torch::kDouble)));
}

TEST_CASE("a parameter with a gradient keeps its dtype") {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 2);
  save(*net, folder.path / "model.safetensors");
  const auto expected = net->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    net->weight.zero_();
  }
  net->weight.sum().backward();
  for (const std::string place : {"cpu", "disk"}) {
    CAPTURE(place);
    CHECK(refusal([&] {
            load_checkpoint_and_dispatch(*net, folder.path, {{"", place}}, {.dtype = torch::kDouble});
          }) ==
          "load_checkpoint_and_dispatch: weight has a gradient, so its dtype cannot change from Float to Double; call "
          "zero_grad() before the load");
  }
  CHECK(same(net->weight, torch::zeros({2, 2})));
  load_checkpoint_and_dispatch(*net, folder.path, {{"", "cpu"}});
  CHECK(same(net->weight, expected));
  CHECK(net->weight.grad().defined());
  net->zero_grad();
  load_checkpoint_and_dispatch(*net, folder.path, {{"", "cpu"}}, {.dtype = torch::kDouble});
  CHECK(same(net->weight, expected.to(torch::kDouble)));
}

TEST_CASE("a device map is computed from the sizes after the conversion") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  save(*net, folder.path / "model.safetensors");
  const auto map = [&](c10::ScalarType built, const accelerate::DeviceMapOptions& options,
                       const accelerate::LoadDispatchOptions& loading = {}) {
    DeepNet loaded = empty_net(built);
    return load_checkpoint_and_dispatch(*loaded, folder.path, DeviceMapStrategy::automatic, options, loading);
  };
  const accelerate::MaxMemory limit{{"cpu", 4 * offload_testing::kUnitBytes}};
  const DeviceMap whole{{"", "cpu"}};
  CHECK(map(torch::kFloat, {.max_memory = limit}).at("blocks.5") == "disk");
  CHECK(map(torch::kFloat, {.max_memory = limit, .dtype = torch::kHalf}) == whole);
  CHECK(map(torch::kFloat, {.max_memory = limit}, {.dtype = torch::kHalf}) == whole);
  CHECK(map(torch::kHalf, {.max_memory = limit}) == whole);
  // Hugging Face Accelerate counts the dtype of the model, which is narrower, and exceeds the limit.
  CHECK(map(torch::kHalf, {.max_memory = limit, .dtype = torch::kFloat}).at("blocks.5") == "disk");
  CHECK(refusal([&] { map(torch::kFloat, {.max_memory = limit, .dtype = torch::kHalf}, {.dtype = torch::kFloat}); }) ==
        "load_checkpoint_and_dispatch: dtype is Half in the options of the device map and Float in those of the load; "
        "set one of them");
  CHECK(refusal([&] {
          map(torch::kFloat, {.special_dtypes = {{"scale", torch::kHalf}}},
              {.special_dtypes = {{"scale", torch::kDouble}}});
        }) ==
        "load_checkpoint_and_dispatch: special_dtypes has Half for scale in the options of the device map and Double "
        "in those of the load; set one of them");
  CHECK(map(torch::kFloat, {.special_dtypes = {{"scale", torch::kHalf}, {"head.bias", torch::kHalf}}},
            {.special_dtypes = {{"scale", torch::kHalf}}}) == whole);
}

TEST_CASE("a conversion from the disk needs little more memory than two units") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  net->to(torch::kDouble);
  save(*net, folder.path / "model.safetensors");
  const sharding_testing::CountedMemory memory;
  const int64_t before = memory.counts.held;
  DeepNet loaded = empty_net(torch::kFloat);
  load_checkpoint_and_dispatch(*loaded, folder.path, {{"", "disk"}});
  memory.counts.peak = memory.counts.held;
  for (int i = 0; i < 2; ++i) output_of(loaded);
  CHECK(memory.counts.peak - before < 2 * offload_testing::kUnitBytes + (int64_t{2} << 20) + 100000);
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
        "dispatch_model: tensor blocks.3.weight is sharded, offloaded or dispatched already");
  DeepNet plain = deep_net();
  dispatch_model(*plain, {{"", "cpu"}});
  CHECK(at::equal(plain(offload_testing::input()), expected));  // trains as before
}

TEST_CASE("a folder with a buffer of another shape is refused before tensors are moved") {
  struct ScaledImpl : torch::nn::Module {
    explicit ScaledImpl(int64_t size) { register_buffer("scale", torch::ones({size})); }
    at::Tensor weight = register_parameter("weight", torch::randn({2}));
  };
  const TemporaryFolder folder;
  save(ScaledImpl(3), folder.path / "model.safetensors");
  ScaledImpl net(2);
  const auto expected = net.weight.detach().clone();
  const auto dispatch = [&](bool offload_buffers) {
    dispatch_model(net, {{"weight", "cpu"}, {"scale", "disk"}},
                   {.offload_dir = folder.path, .offload_buffers = offload_buffers, .force_hooks = true});
  };
  CHECK(refusal([&] { dispatch(true); }) ==
        "dispatch_model: scale of " + folder.path.string() + " is [3], the model has [2]; build the model as saved");
  dispatch(false);
  CHECK(at::equal(net.weight, expected));
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
  const std::string unknown_class =
      ": units.classes has Nope, but no module within the model is of this class; its classes are Linear, ModuleList";
  CHECK(refusal([&] {
          dispatch_model(*net, {{"", "cpu"}}, {.units = {.classes = {"Nope"}}});
        }) == "dispatch_model" + unknown_class);
  CHECK(
      refusal([&] {
        load_checkpoint_and_dispatch(*net, folder.path, {{"", "cpu"}}, {.dispatch = {.units = {.classes = {"Nope"}}}});
      }) == "load_checkpoint_and_dispatch" + unknown_class);
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
