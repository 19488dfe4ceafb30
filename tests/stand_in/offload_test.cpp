// SPDX-License-Identifier: Apache-2.0
// Parameters that do not fit on the device, and models on several devices.
#include "tests/stand_in/support.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/offload/models.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::cpu_offload;
using accelerate::DeviceMap;
using accelerate::disk_offload;
using accelerate::dispatch_model;
using accelerate::infer_auto_device_map;
using offload_testing::deep_net;
using offload_testing::DeepNet;
using offload_testing::input;
using offload_testing::output_of;
using testing::TemporaryFolder;

namespace {

const auto kOnDevice = accelerate::OffloadOptions{.execution_device = stand_in::device()};

/// Rounding differs on a GPU.
void check_equal(const at::Tensor& found, const at::Tensor& expected) {
  CHECK(at::allclose(found.cpu(), expected, stand_in::on_gpu() ? 1e-4 : 0, stand_in::on_gpu() ? 1e-4 : 0));
}

/// Limits the memory of the device during its lifetime.
struct DeviceLimit {
  explicit DeviceLimit(size_t bytes) { stand_in::set_limit(0, bytes); }
  ~DeviceLimit() { stand_in::set_limit(0, size_t{256} << 20); }
  DeviceLimit(const DeviceLimit&) = delete;
  DeviceLimit& operator=(const DeviceLimit&) = delete;
};

}  // namespace

TEST_CASE("cpu_offload and disk_offload have the CPU's numbers at every pace") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  disk_offload(*net, folder.path);
  for (const bool on_disk : {false, true}) {
    CAPTURE(on_disk);
    stand_in::at_every_pace([&] {
      DeepNet offloaded = deep_net();
      if (on_disk) {
        disk_offload(*offloaded, folder.path, kOnDevice);
      } else {
        cpu_offload(*offloaded, kOnDevice);
      }
      CHECK(offloaded->head->weight.device() == stand_in::device());
      for (int i = 0; i < 3; ++i) check_equal(output_of(offloaded), expected);
    });
  }
}

TEST_CASE("a model runs in device memory for two units" * stand_in::needs_stand_in()) {
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  cpu_offload(*net, kOnDevice);
  const DeviceLimit limit(2 * offload_testing::kUnitBytes + 200000);
  for (int i = 0; i < 3; ++i) check_equal(output_of(net), expected);
  const torch::NoGradGuard no_grad;
  net->to(torch::kCPU);
  check_equal(output_of(net), expected);
}

TEST_CASE("a steady forward of cpu_offload does not wait for the device") {
  DeepNet net = deep_net();
  cpu_offload(*net, kOnDevice);
  const auto on_device = input().to(stand_in::device());
  const torch::NoGradGuard no_grad;
  net(on_device);
  const auto waits = stand_in::host_waits(0);
  for (int i = 0; i < 3; ++i) net(on_device);
  CHECK(stand_in::host_waits(0) == waits);
}

TEST_CASE("a model on two devices, the CPU and the disk has the CPU's numbers" * stand_in::needs_stand_in()) {
  const TemporaryFolder folder;
  DeepNet reference = deep_net();
  const auto expected = output_of(reference);
  const DeviceMap map{{"", "1"}, {"blocks.0", "0"}, {"blocks.2", "0"}, {"blocks.3", "cpu"}, {"blocks.4", "disk"}};
  stand_in::at_every_pace([&] {
    DeepNet net = deep_net();
    dispatch_model(*net, map, {.offload_dir = folder.path});
    CHECK(net->head->weight.device() == stand_in::device(1));
    CHECK(net->blocks[0]->as<torch::nn::Linear>()->weight.device() == stand_in::device(0));
    for (int i = 0; i < 2; ++i) {
      const auto output = output_of(net);
      CHECK(output.device() == stand_in::device(1));
      check_equal(output, expected);
    }
  });
}

TEST_CASE("a model of init_empty_weights is dispatched to two devices with the values of eager construction" *
          stand_in::needs_stand_in()) {
  DeepNet reference = deep_net();
  DeepNet net = accelerate::init_empty_weights([] { return deep_net(); });
  dispatch_model(*net, {{"", "0"}, {"blocks.1", "1"}});
  check_equal(output_of(net), output_of(reference));
}

TEST_CASE("the main device must be an accelerator if the map has one") {
  DeepNet net = deep_net();
  const auto text = testing::refusal([&] { dispatch_model(*net, {{"", "0"}}, {.main_device = torch::kCPU}); });
  CHECK(text.starts_with("dispatch_model: main_device is the CPU, but the device map has "));
  CHECK(text.ends_with("; leave main_device unset, or set it to an accelerator"));
  const auto loading = testing::refusal([&] {
    accelerate::load_checkpoint_and_dispatch(*net, "weights", {{"", "0"}}, {.dispatch = {.main_device = torch::kCPU}});
  });
  CHECK(loading.starts_with("load_checkpoint_and_dispatch: main_device is the CPU, but the device map has "));
}

TEST_CASE("force_hooks brings inputs to the single device of a model") {
  DeepNet net = deep_net(), moved = deep_net(), forced = deep_net();
  const torch::NoGradGuard no_grad;
  dispatch_model(*moved, {{"", "0"}});
  CHECK_THROWS(moved(input()));
  dispatch_model(*forced, {{"", "0"}}, {.force_hooks = true});
  const auto output = forced(input());
  CHECK(output.device() == stand_in::device());
  check_equal(output, net(input()));
}

TEST_CASE("offloaded buffers have the CPU's numbers at every pace") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  net->scale.fill_(0.75);
  const auto expected = output_of(net);
  stand_in::at_every_pace([&] {
    for (const DeviceMap& map : {DeviceMap{{"", "0"}, {"scale", "cpu"}}, DeviceMap{{"", "0"}, {"scale", "disk"}},
                                 DeviceMap{{"", "cpu"}, {"head", "0"}}}) {
      DeepNet dispatched = deep_net();
      dispatched->scale.fill_(0.75);
      dispatch_model(*dispatched, map, {.offload_dir = folder.path, .offload_buffers = true});
      CHECK(dispatched->scale.device() == stand_in::device());
      for (int i = 0; i < 2; ++i) check_equal(output_of(dispatched), expected);
    }
    DeepNet offloaded = deep_net();
    offloaded->scale.fill_(0.75);
    cpu_offload(*offloaded, {.execution_device = stand_in::device(), .offload_buffers = true});
    for (int i = 0; i < 2; ++i) check_equal(output_of(offloaded), expected);
  });
}

TEST_CASE("offloaded buffers have no memory of the device while they are not used" * stand_in::needs_stand_in()) {
  struct TableImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return linear(x) + table.mean(); }
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 3));
    at::Tensor table = register_buffer("table", torch::ones({1 << 20}));  // 4 MiB
  };
  const torch::NoGradGuard no_grad;
  TableImpl resident, offloaded;
  const DeviceLimit limit(2 << 20);
  CHECK_THROWS(cpu_offload(resident, kOnDevice));
  cpu_offload(offloaded, {.execution_device = stand_in::device(), .offload_buffers = true});
}

TEST_CASE("values of another dtype are converted for each device") {
  const TemporaryFolder folder;
  DeepNet saved = deep_net();
  saved->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto expected = saved(input().to(torch::kDouble));
  disk_offload(*saved, folder.path);  // writes the file
  const DeviceMap map{{"", "0"}, {"blocks.3", "cpu"}, {"blocks.4", "disk"}};
  stand_in::at_every_pace([&] {
    DeepNet loaded = accelerate::init_empty_weights([] { return DeepNet(); });
    accelerate::load_checkpoint_and_dispatch(*loaded, folder.path, map, {.dtype = torch::kDouble});
    CHECK(loaded->head->weight.dtype() == torch::kDouble);
    CHECK(at::allclose(loaded(input().to(torch::kDouble)).cpu(), expected, 1e-12, 1e-12));
    DeepNet narrowed = accelerate::init_empty_weights([] { return DeepNet(); });
    accelerate::load_checkpoint_and_dispatch(*narrowed, folder.path, map);
    CHECK(narrowed->blocks[4]->as<torch::nn::Linear>()->weight.dtype() == torch::kFloat);
    CHECK(at::allclose(narrowed(input()).cpu().to(torch::kDouble), expected, 1e-4, 1e-4));
  });
}

TEST_CASE("an auto device map fills the devices of a machine") {
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  const auto map = infer_auto_device_map(*net, {.max_memory = {{"0", 3500000}, {"cpu", "1GB"}}});
  CHECK(map.at("first") == "0");
  CHECK(map.at("head") == "cpu");
  dispatch_model(*net, map);
  check_equal(output_of(net), expected);
}
