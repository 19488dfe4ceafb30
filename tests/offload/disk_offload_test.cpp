// SPDX-License-Identifier: Apache-2.0
// Models on the CPU with parameters in files.
#include "tests/testing.hpp"
//
#include <future>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/offload/models.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::cpu_offload;
using accelerate::disk_offload;
using offload_testing::deep_net;
using offload_testing::DeepNet;
using offload_testing::input;
using offload_testing::output_of;
using testing::refusal;
using testing::TemporaryFolder;

namespace {

/// A file with the weights of deep_net(), and their output.
struct Saved {
  Saved() {
    DeepNet net = deep_net();
    expected = output_of(net);
    disk_offload(*net, folder.path);
  }
  /// A net with other values, which is offloaded.
  [[nodiscard]] DeepNet offloaded(const accelerate::OffloadOptions& options = {}) const {
    DeepNet net = deep_net(2);
    disk_offload(*net, folder.path, options);
    return net;
  }
  TemporaryFolder folder;
  std::string file = folder / "model.safetensors";
  at::Tensor expected;
};

/// A layer with a large buffer, which counts its calls in training mode.
struct BufferNetImpl : torch::nn::Module {
  static constexpr int64_t kTableBytes = 1 << 20;
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) calls.add_(1);
    return linear(x) * scale + table.mean();
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(8, 8));
  at::Tensor scale = register_buffer("scale", torch::full({8}, 3.0));
  at::Tensor table = register_buffer("table", torch::ones({kTableBytes / 4}));
  at::Tensor calls = register_buffer("calls", torch::zeros({1}, torch::kLong));
};

}  // namespace

TEST_CASE("a model runs from a file with memory for two units") {
  const Saved saved;
  const sharding_testing::CountedMemory memory;
  const int64_t before = memory.counts.held;
  DeepNet net = saved.offloaded();
  CHECK(memory.counts.held - before < 4096);  // its buffer
  for (const bool prefetch : {true, false}) {
    CAPTURE(prefetch);
    net = saved.offloaded({.prefetch = prefetch});
    memory.counts.peak = memory.counts.held;
    for (int i = 0; i < 3; ++i) CHECK(at::equal(output_of(net), saved.expected));
    CHECK(memory.counts.peak - before <= 2 * offload_testing::kUnitBytes + 50000);
  }
  net = nullptr;
  CHECK(memory.counts.held - before < 4096);
}

TEST_CASE("buffers are read from the weights of a folder, also into a model of init_empty_weights") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  net->scale.fill_(0.25);
  const auto expected = output_of(net);
  accelerate::checkpoint::NamedTensors weights;
  for (const auto& parameter : net->named_parameters()) weights.emplace_back(parameter.key(), parameter.value());
  for (const auto& buffer : net->named_buffers()) weights.emplace_back(buffer.key(), buffer.value());
  accelerate::checkpoint::save_file(folder.path / "model.safetensors", weights, "test");
  for (const bool is_deferred : {false, true}) {
    CAPTURE(is_deferred);
    DeepNet other = is_deferred ? accelerate::init_empty_weights([] { return deep_net(2); }) : deep_net(2);
    disk_offload(*other, folder.path);
    CHECK(at::equal(output_of(other), expected));
  }
}

TEST_CASE("a model is written to a folder without weights, and keeps its parameter objects") {
  const TemporaryFolder folder;
  DeepNet net = deep_net();
  const auto expected = output_of(net);
  const auto weight = net->blocks[1]->as<torch::nn::Linear>()->weight;
  disk_offload(*net, folder.path / "new" / "folder");
  CHECK(at::equal(output_of(net), expected));
  CHECK(net->named_parameters()["blocks.1.weight"].is_same(weight));
  CHECK(weight.sizes() == at::IntArrayRef{512, 512});
  const torch::NoGradGuard no_grad;
  net->to(torch::kDouble);  // ends the offload
  CHECK(at::allclose(net(input().to(torch::kDouble)).to(torch::kFloat), expected, 1e-5, 1e-5));
  net->blocks[0]->as<torch::nn::Linear>()->weight.zero_();
}

TEST_CASE("tied weights, empty parameters, other dtypes and views are offloaded") {
  struct OddNetImpl : torch::nn::Module {
    OddNetImpl() {
      head->unregister_all();
      head->weight = head->register_parameter("weight", embedding->weight);
    }
    struct Head : torch::nn::Module {
      at::Tensor weight = register_parameter("weight", torch::randn({7, 3}));
      void unregister_all() { parameters_.clear(); }
    };
    at::Tensor forward(const at::Tensor& ids) {
      const auto x = embedding(ids) + steps.to(torch::kFloat).sum() + nothing.sum();
      return torch::matmul(x.to(torch::kBFloat16), wide.t()).to(torch::kFloat).matmul(head->weight.t());
    }
    torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(7, 3));
    std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>());
    at::Tensor steps = register_parameter("steps", torch::arange(5), /*requires_grad=*/false);
    at::Tensor nothing = register_parameter("nothing", torch::empty({0, 4}));
    at::Tensor wide = register_parameter("wide", torch::randn({3, 3}).to(torch::kBFloat16).t());
  };
  const TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  OddNetImpl net;
  const auto ids = torch::tensor({1, 5, 6});
  const auto expected = net.forward(ids);
  const auto row = net.embedding->weight[2];  // keeps the memory of the parameter before the offload
  const auto row_values = row.clone();
  disk_offload(net, folder.path, {.units = {.min_bytes = 1}});
  CHECK(at::equal(net.forward(ids), expected));
  CHECK(at::equal(row, row_values));
  const auto later = net.embedding->weight.view({3, 7});
  CHECK(at::equal(later.flatten().slice(0, 6, 9), row_values));
}

TEST_CASE("values of another dtype are converted whenever they are read") {
  const Saved saved;
  const torch::NoGradGuard no_grad;
  for (const auto dtype : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    CAPTURE(dtype);
    DeepNet converted = deep_net(), offloaded = deep_net(2);
    converted->to(dtype);
    offloaded->to(dtype);
    offloaded->scale.copy_(converted->scale);
    disk_offload(*offloaded, saved.folder.path);
    for (const auto& parameter : converted->named_parameters()) {
      CAPTURE(parameter.key());
      const auto& found = offloaded->named_parameters()[parameter.key()];
      CHECK(found.dtype() == dtype);
      CHECK(at::equal(found, parameter.value()));
    }
    CHECK(at::equal(offloaded(input().to(dtype)), converted(input().to(dtype))));
  }
}

TEST_CASE("offloaded buffers have memory while operators use them, and cannot be written") {
  const TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  const sharding_testing::CountedMemory memory;
  BufferNetImpl net;
  net.eval();
  const auto expected = net.forward(input());
  const int64_t before = memory.counts.held;
  disk_offload(net, folder.path, {.offload_buffers = true});
  CHECK(before - memory.counts.held > BufferNetImpl::kTableBytes);
  CHECK(at::equal(net.forward(input()), expected));
  net.train();
  CHECK(refusal([&] { net.forward(input()); }) ==
        "offload: an operator writes to buffer calls, which is offloaded, so the values would be lost; call eval(), or "
        "leave offload_buffers unset");
  net.eval();
  CHECK(at::equal(net.forward(input()), expected));
  net.to(torch::kDouble);  // ends the offload
  net.train();
  net.forward(input().to(torch::kDouble));
  CHECK(net.calls.item<int64_t>() == 1);
}

TEST_CASE("buffers that a file lacks keep their values when they are offloaded") {
  const TemporaryFolder folder;
  const torch::NoGradGuard no_grad;
  BufferNetImpl net;
  net.eval();
  net.table.fill_(4);
  accelerate::checkpoint::NamedTensors weights{{"scale", torch::full({8}, 5.0)}};
  for (const auto& parameter : net.named_parameters()) weights.emplace_back(parameter.key(), parameter.value());
  accelerate::checkpoint::save_file(folder.path / "model.safetensors", weights, "test");
  const auto expected = net.linear(input()) * 5 + 4;
  disk_offload(net, folder.path, {.offload_buffers = true});
  CHECK(at::equal(net.forward(input()), expected));
}

TEST_CASE("modules of a class are copied as a whole") {
  const Saved saved;
  const sharding_testing::CountedMemory memory;
  DeepNet net = saved.offloaded({.units = {.classes = {"ModuleList"}}});
  memory.counts.peak = memory.counts.held;
  const int64_t before = memory.counts.held;
  CHECK(at::equal(output_of(net), saved.expected));
  CHECK(memory.counts.peak - before > 6 * offload_testing::kUnitBytes);
  CHECK(refusal([&] {
          (void)saved.offloaded({.units = {.classes = {"Linear", "Block"}}});
        }) ==
        "disk_offload: units.classes has Block, but no module within the model is of this class; its classes are "
        "Linear, ModuleList");
}

TEST_CASE("a removed file can be read, a truncated one is an error until it is complete again") {
  const Saved saved;
  DeepNet net = saved.offloaded({.prefetch = false});
  std::filesystem::copy(saved.file, saved.folder / "copy");
  const auto size = std::filesystem::file_size(saved.file);
  std::filesystem::resize_file(saved.file, size / 2);
  const std::string text = refusal([&] { output_of(net); });
  CHECK_MESSAGE(text.starts_with("offload: " + saved.file + " ends at byte "), text);
  CHECK_MESSAGE(text.ends_with("; it was changed after it was opened"), text);
  {
    std::ofstream same(saved.file, std::ios::binary | std::ios::in | std::ios::out);
    same << std::ifstream(saved.folder / "copy", std::ios::binary).rdbuf();
  }
  CHECK(at::equal(output_of(net), saved.expected));
  std::filesystem::remove(saved.file);
  CHECK(at::equal(output_of(net), saved.expected));
}

TEST_CASE("uses that an offloaded parameter does not allow are refused") {
  const Saved saved;
  DeepNet net = saved.offloaded();
  CHECK(refusal([&] { net(input()); }) ==
        "offload: parameter first.bias is offloaded and requires a gradient, but offloaded parameters are not "
        "trained; use torch::NoGradGuard, call requires_grad_(false) before the offload, or train with full_shard");
  CHECK(refusal([&] {
          const torch::NoGradGuard no_grad;
          net->head->bias.zero_();
        }) ==
        "offload: an operator writes to parameter head.bias, which is offloaded, so the values would be lost; change "
        "the parameters before the offload");
  const std::string text = refusal<c10::Error>([&] { (void)net->head->bias.data_ptr(); });
  CHECK_MESSAGE(text.find("parameter head.bias is offloaded, so it has no memory here; use operators, or move the "
                          "module to a device") != std::string::npos,
                text);
  CHECK(refusal([&] { disk_offload(*net, saved.folder.path); }) ==
        "disk_offload: tensor first.weight is sharded, offloaded or dispatched already");
  CHECK(refusal([&] { cpu_offload(*net); }) ==
        "cpu_offload: tensor first.weight is sharded, offloaded or dispatched already");
  CHECK(refusal([&] { cpu_offload(*deep_net()); }) ==
        "cpu_offload: the execution device is the CPU, where the parameters are already; set execution_device, or use "
        "disk_offload()");
  CHECK(at::equal(output_of(net), saved.expected));
}

TEST_CASE("files that do not match the model are refused, and the model is unchanged") {
  const Saved saved;
  DeepNet larger(7);
  CHECK(refusal([&] { disk_offload(*larger, saved.folder.path); }) ==
        "disk_offload: " + saved.folder.path.string() + " lacks the parameter blocks.6.weight");
  torch::nn::Sequential other(torch::nn::Linear(8, 4));
  TemporaryFolder folder;
  disk_offload(*torch::nn::Sequential(torch::nn::Linear(8, 5)), folder.path);
  CHECK(refusal([&] { disk_offload(*other, folder.path); }) ==
        "disk_offload: 0.weight of " + folder.path.string() +
            " is [5, 8], the model has [4, 8]; build the model as saved");
  CHECK(refusal([&] { disk_offload(*other, saved.folder / "no.safetensors"); }) ==
        "disk_offload: " + (saved.folder / "no.safetensors") + " cannot be opened: No such file or directory");
  other->forward(torch::ones({1, 8})).sum().backward();
}

TEST_CASE("an exception in forward leaves the model usable") {
  const Saved saved;
  DeepNet net = saved.offloaded();
  for (int64_t block = 1; block <= 6; ++block) {
    net->throws_after = block;
    CHECK(refusal<std::runtime_error>([&] { output_of(net); }) == "stopped");
    CHECK(at::equal(output_of(net), saved.expected));
  }
}

TEST_CASE("several threads use one model") {
  const Saved saved;
  DeepNet net = saved.offloaded();
  std::vector<std::future<bool>> results;
  for (int i = 0; i < 4; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      bool is_equal = true;
      for (int round = 0; round < 3; ++round) is_equal = at::equal(output_of(net), saved.expected) && is_equal;
      return is_equal;
    }));
  }
  for (auto& result : results) CHECK(result.get());
}

TEST_CASE("gradients flow through frozen offloaded parameters to an adapter") {
  const Saved saved;
  DeepNet net = deep_net(2), reference = deep_net();
  for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  disk_offload(*net, saved.folder.path);
  const auto gradient = [](DeepNet& of) {
    auto adapter = torch::ones({8}, torch::requires_grad());
    of(input() * adapter).square().sum().backward();
    return adapter.grad();
  };
  for (int i = 0; i < 2; ++i) CHECK(at::equal(gradient(net), gradient(reference)));
}

TEST_CASE("a module that ends before its first operator or during a prefetch stops the reads") {
  const Saved saved;
  { const DeepNet unused = saved.offloaded(); }
  at::Tensor kept;
  {
    DeepNet net = saved.offloaded();
    kept = output_of(net);
  }
  CHECK(at::equal(kept, saved.expected));
}

TEST_CASE("saving an offloaded model writes the values of every unit") {
  const torch::NoGradGuard no_grad;
  const Saved saved;
  for (const bool prefetch : {true, false}) {
    CAPTURE(prefetch);
    const TemporaryFolder folder;
    const DeepNet net = saved.offloaded({.prefetch = prefetch});
    accelerate::checkpoint::NamedTensors tensors;
    for (const auto& item : net->named_parameters()) tensors.emplace_back(item.key(), item.value());
    for (const auto& item : net->named_buffers()) tensors.emplace_back(item.key(), item.value());
    accelerate::checkpoint::save_weights(folder.path, tensors, {}, "test");
    DeepNet copy = deep_net(2);
    disk_offload(*copy, folder.path);
    CHECK(at::equal(output_of(copy), saved.expected));
  }
}
