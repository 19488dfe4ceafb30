// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/refusal.hpp"

using accelerate::check_device_map;
using accelerate::DeviceMap;
using accelerate::get_balanced_memory;
using accelerate::get_max_memory;
using accelerate::infer_auto_device_map;
using accelerate::MaxMemory;
using accelerate::MemoryList;
using testing::refusal;

namespace {

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(10, 10));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(10, 10));
};
TORCH_MODULE(Block);

/// Blocks of 880 bytes, between an embedding of 400 and a head of 440 bytes.
struct NetImpl : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(10, 10));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(10, 10));
};
TORCH_MODULE(Net);

}  // namespace

TEST_CASE("modules fill the devices in order, and space for the largest layer is reserved") {
  const Net net;
  const auto map = [&](const MaxMemory& limits, const std::vector<std::string>& classes = {}) {
    return infer_auto_device_map(*net, {.max_memory = limits, .no_split_module_classes = classes});
  };
  CHECK(map({{"cpu", "1GB"}}) == DeviceMap{{"", "cpu"}});
  CHECK(map({{"0", 1000}, {"1", 1000}, {"cpu", 10000}}) ==
        DeviceMap{{"embedding", "0"}, {"blocks.0", "1"}, {"blocks.1", "cpu"}, {"head", "cpu"}});
  CHECK(map({{"0", 1300}, {"1", 1000}, {"cpu", 10000}}, {"Block"}) ==
        DeviceMap{{"embedding", "0"}, {"blocks.0", "1"}, {"blocks.1", "cpu"}, {"head", "cpu"}});
  CHECK(map({{"0", 1}}) == DeviceMap{{"", "disk"}});
}

TEST_CASE("a model of init_empty_weights is placed, and a module with two names once") {
  struct TiedImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(10, 10));
    torch::nn::Linear middle = register_module("middle", torch::nn::Linear(10, 10));
    torch::nn::Linear last = register_module("last", first);
    torch::nn::Linear head = register_module("head", torch::nn::Linear(10, 30));
  };
  const auto net = accelerate::init_empty_weights([] { return std::make_shared<TiedImpl>(); });
  using Groups = std::vector<std::vector<std::string>>;
  CHECK(accelerate::find_tied_parameters(*net) == Groups{{"first.weight", "last.weight"}, {"first.bias", "last.bias"}});
  CHECK(accelerate::compute_module_sizes(*net).at("") == 2200);
  CHECK(accelerate::compute_module_sizes(*net, torch::kHalf).at("middle") == 220);
  CHECK(infer_auto_device_map(*net, {.max_memory = {{"0", 1800}, {"cpu", 4000}}}) ==
        DeviceMap{{"first", "0"}, {"middle", "cpu"}, {"head", "cpu"}});
}

TEST_CASE("limits are sorted, and invalid ones are refused") {
  CHECK(get_max_memory({{"disk", 3}, {"10", 1}, {"2", "1KiB"}, {"cpu", "2kb"}}) ==
        MemoryList{{"2", 1024}, {"10", 1}, {"cpu", 250}, {"disk", 3}});
  CHECK(get_max_memory().back().second > 0);
  CHECK(refusal([] {
          (void)get_max_memory({{"gpu", 1}});
        }) ==
        "get_max_memory: max_memory has the device \"gpu\", must be the number of an accelerator device, \"cpu\" or "
        "\"disk\"");
  CHECK(refusal([] {
          (void)get_max_memory({{"0", -1}});
        }) == "get_max_memory: max_memory of 0 is -1, must be at least 0");
  CHECK(refusal([] {
          (void)get_max_memory({{"0", "much"}});
        }) ==
        "get_max_memory: max_memory is 'much', must be a number of bytes, or one with KB, MB, GB, KiB, MiB or GiB "
        "(\"5GB\")");
  CHECK(get_balanced_memory(*Net(), {{"cpu", 7}}) == MemoryList{{"cpu", 7}});
}

TEST_CASE("a map with an unknown name or without some tensors is refused") {
  const Net net;
  check_device_map(*net, {{"", "cpu"}});
  check_device_map(*net, {{"embedding", "cpu"}, {"blocks", "0"}, {"head.weight", "1"}, {"head.bias", "1"}});
  CHECK(refusal([&] {
          check_device_map(*net, {{"", "cpu"}, {"block.0", "0"}});
        }) == "device_map: the model has no module, parameter or buffer \"block.0\"; did you mean \"blocks.0\"?");
  CHECK(refusal([&] {
          check_device_map(*net, {{"", "cpu"}, {"transformer", "0"}});
        }) == "device_map: the model has no module, parameter or buffer \"transformer\"");
  CHECK(refusal([&] {
          check_device_map(*net, {{"embedding", "cpu"}, {"blocks", "0"}});
        }) ==
        "device_map: the map has no device for 2 tensors: head.weight, head.bias; add their modules, or \"\" for the "
        "rest of the model");
}
