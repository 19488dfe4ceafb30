// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/refusal.hpp"

using accelerate::check_device_map;
using accelerate::DeviceMap;
using accelerate::DeviceMapOptions;
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

std::string log_of(accelerate::base::LogLevel level, const auto& call) {
  std::string lines;
  const auto level_before = accelerate::base::log_level();
  const auto before =
      accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.append(line).append("\n"); });
  accelerate::base::set_log_level(level);
  call();
  accelerate::base::set_log_level(level_before);
  accelerate::base::set_log_handler(before);
  return lines;
}

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

TEST_CASE("with fallback_allocation a later part is placed on a device on which the next one does not fit") {
  const torch::nn::Sequential net(torch::nn::Linear(10, 14), torch::nn::Linear(10, 11), torch::nn::Linear(5, 10));
  DeviceMapOptions options{.max_memory = {{"0", 1000}, {"cpu", 10000}}};  // the layers have 616, 484 and 240 bytes
  CHECK(infer_auto_device_map(*net, options) == DeviceMap{{"", "cpu"}});
  options.fallback_allocation = true;
  CHECK(infer_auto_device_map(*net, options) == DeviceMap{{"0", "cpu"}, {"1", "cpu"}, {"2", "0"}});
  options.max_memory.at("0") = 855;  // one byte less than the first and the last layer
  CHECK(infer_auto_device_map(*net, options) == DeviceMap{{"", "cpu"}});
}

TEST_CASE("fallback_allocation ends if a part is tied to the one that does not fit") {
  struct TiedImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(10, 14));
    torch::nn::Linear other = register_module("other", torch::nn::Linear(10, 11));
    torch::nn::Sequential last = register_module("last", torch::nn::Sequential(first, torch::nn::Linear(5, 10)));
  };
  const auto map = [](const std::vector<std::string>& classes) {
    return infer_auto_device_map(TiedImpl(), {.max_memory = {{"0", 1000}, {"1", 900}, {"cpu", 10000}},
                                              .no_split_module_classes = classes,
                                              .fallback_allocation = true});
  };
  // As in Hugging Face Accelerate.
  CHECK(map({}) == DeviceMap{{"first", "1"}, {"last.0", "1"}, {"other", "cpu"}, {"last.1", "cpu"}});
  CHECK(map({"Sequential"}) == DeviceMap{{"", "cpu"}});
}

TEST_CASE("decisions are logged, and buffers for which no device has space are a warning") {
  struct TablesImpl : torch::nn::Module {
    struct Part : torch::nn::Module {
      at::Tensor weight = register_parameter("weight", torch::zeros({100}));
      at::Tensor table = register_buffer("table", torch::zeros({50}));
    };
    std::shared_ptr<Part> first = register_module("first", std::make_shared<Part>());
    std::shared_ptr<Part> second = register_module("second", std::make_shared<Part>());
  };
  const auto log = [](DeviceMapOptions options, accelerate::base::LogLevel level) {
    return log_of(level, [&] { (void)infer_auto_device_map(TablesImpl(), options); });
  };
  using accelerate::base::LogLevel;
  const MaxMemory limits{{"0", 1300}, {"cpu", 10000}};  // each part has 600 bytes
  const std::string warning =
      "infer_auto_device_map: the buffers of parts on the CPU and the disk have 400 bytes, which no accelerator device "
      "has left in its limit; set offload_buffers to copy them while they are used\n";
  CHECK(log({.max_memory = {{"0", 300}, {"cpu", 10000}}}, LogLevel::warning) == warning);
  CHECK(log({.max_memory = {{"0", 300}, {"cpu", 10000}}, .offload_buffers = true}, LogLevel::warning).empty());
  CHECK(log({.max_memory = {{"0", 400}, {"1", 399}, {"cpu", 10000}}}, LogLevel::warning) == warning);
  CHECK(log({.max_memory = {{"0", 300}, {"1", 400}, {"cpu", 10000}}}, LogLevel::warning).empty());
  CHECK(log({.max_memory = {{"cpu", 10000}}}, LogLevel::warning).empty());
  CHECK(log({.max_memory = limits}, LogLevel::debug) ==
        "infer_auto_device_map: first is on 0, which then has 600 bytes\n"
        "infer_auto_device_map: second is on 0, which then has 1200 bytes\n");
  CHECK(log({.max_memory = {{"0", 700}, {"cpu", 10000}}}, LogLevel::info) ==
        "infer_auto_device_map: device 0 has no part: first and the reserved space for the largest layer need 1200 "
        "bytes, the limit is 700\n" +
            warning);
  // Device 1 has a part without parameters.
  const torch::nn::Sequential net(torch::nn::ReLU(), torch::nn::Linear(10, 10));
  CHECK(log_of(LogLevel::info,
               [&] {
                 (void)infer_auto_device_map(*net, {.max_memory = {{"0", 300}, {"1", 300}, {"cpu", 10000}}});
               }) ==
        "infer_auto_device_map: device 0 has no part: 0 and the reserved space for the largest layer need 440 bytes, "
        "the limit is 300\n");
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
  const MaxMemory two{{"0", "1GB"}, {"1", "1GB"}};
  CHECK(get_balanced_memory(*Net(), two).front().second == 1841);
  CHECK(get_balanced_memory(*Net(), two, {}, std::nullopt, {{"embedding.weight", torch::kHalf}}).front().second ==
        1700);
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
