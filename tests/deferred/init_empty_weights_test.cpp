// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/deferred/init_empty_weights.hpp"
#include "tests/refusal.hpp"

using accelerate::init_empty_weights;
using accelerate::materialize;
using accelerate::deferred::is_deferred;
using testing::refusal;

namespace {

using Build = std::function<std::shared_ptr<torch::nn::Module>()>;

/// Fills in the ways of user code.
struct CustomNet : torch::nn::Module {
  CustomNet() {
    const torch::NoGradGuard no_grad;
    scaled = register_parameter("scaled", torch::randn({9, 7}) * 0.02);
    truncated = register_parameter("truncated", torch::empty({20, 5}));
    truncated.uniform_(-0.9, 0.9).erfinv_().mul_(1.4).add_(torch::tensor(0.5)).clamp_(-1, 1);
    row_zero = register_parameter("row_zero", torch::randn({6, 4}));
    row_zero[2].fill_(0);
    row_zero.narrow(1, 0, 2).normal_(1, 3);
    orthogonal = register_parameter("orthogonal", torch::empty({8, 8}));
    torch::nn::init::orthogonal_(orthogonal);
    torch::nn::init::kaiming_normal_(register_parameter("kaiming", torch::empty({17, 3})));
    torch::nn::init::xavier_normal_(register_parameter("xavier", torch::empty({5, 5})));
    torch::nn::init::eye_(register_parameter("eye", torch::empty({4, 4})));
    twice = register_parameter("twice", torch::ones({33}));
    twice.normal_().uniform_();
    copied = register_parameter("copied", torch::empty({33}));
    copied.copy_(twice);
    register_parameter("cloned", twice.clone());
    twice.mul_(2);
    register_parameter("halved", twice.to(torch::kBFloat16));
    register_parameter("frozen", torch::full({3}, 2.5), /*requires_grad=*/false);
    register_buffer("listed", torch::tensor(std::vector<float>{1, 2, 3}));
    register_buffer("positions", torch::arange(12).reshape({3, 4}));
    register_buffer("mask", torch::ones({5, 5}).triu(1).to(torch::kBool));
    register_buffer("count", torch::zeros({}, torch::kLong));
    register_parameter("none", torch::zeros({0, 3}));
    const float read = torch::rand({3})[1].item<float>();
    register_buffer("read", torch::full({2}, read));
  }
  torch::Tensor scaled, truncated, row_zero, orthogonal, twice, copied;
};

std::vector<std::pair<std::string, Build>> modules() {
  using namespace torch::nn;
  return {
      {"MLP", [] { return Sequential(Linear(7, 11), Tanh(), Linear(LinearOptions(11, 3).bias(false))).ptr(); }},
      {"conv net",
       [] {
         return Sequential(Conv2d(3, 8, 3), BatchNorm2d(8), ReLU(), ConvTranspose2d(8, 4, 3), GroupNorm(2, 4)).ptr();
       }},
      {"LSTM", [] { return LSTM(LSTMOptions(5, 6).num_layers(2).bidirectional(true)).ptr(); }},
      {"GRU", [] { return GRU(5, 6).ptr(); }},
      {"Embedding", [] { return Embedding(EmbeddingOptions(10, 17).padding_idx(3)).ptr(); }},
      {"MultiheadAttention", [] { return MultiheadAttention(8, 2).ptr(); }},
      {"Bilinear and PReLU",
       [] { return Sequential(Bilinear(3, 4, 5), PReLU(), LayerNorm(LayerNormOptions({5}))).ptr(); }},
      {"Transformer", [] { return Transformer(TransformerOptions(8, 2, 2, 2).dim_feedforward(16)).ptr(); }},
      {"converted",
       [] {
         Linear linear(33, 5);
         linear->to(torch::kDouble);
         return linear.ptr();
       }},
      {"custom", [] { return std::make_shared<CustomNet>(); }}};
}

std::vector<torch::Tensor> tensors_of(const torch::nn::Module& module) {
  auto list = module.parameters();
  for (const auto& buffer : module.buffers()) list.push_back(buffer);
  return list;
}

void check_equal(const torch::nn::Module& module, const torch::nn::Module& eager) {
  const auto own = tensors_of(module), expected = tensors_of(eager);
  REQUIRE(own.size() == expected.size());
  for (size_t i = 0; i < own.size(); ++i) {
    CAPTURE(i);
    CHECK_FALSE(is_deferred(own[i]));
    CHECK((own[i].dtype() == expected[i].dtype()));
    CHECK((own[i].strides() == expected[i].strides()));
    CHECK(own[i].requires_grad() == expected[i].requires_grad());
    CHECK(own[i].is_leaf());
    CHECK(own[i].equal(expected[i]));
  }
}

}  // namespace

TEST_CASE("modules have the bits of an ordinary build, and the generator ends in the same state") {
  for (const auto& [name, build] : modules()) {
    CAPTURE(name);
    torch::manual_seed(11);
    const auto eager = build();
    const auto next = torch::rand({5});
    torch::manual_seed(11);
    const auto module = init_empty_weights(build);
    CHECK(torch::rand({5}).equal(next));
    size_t deferred = 0;
    for (const auto& parameter : module->parameters()) deferred += is_deferred(parameter) ? 1 : 0;
    CHECK(deferred > 0);
    if (name != "custom") CHECK(deferred == module->parameters().size());
    materialize(*module);
    check_equal(*module, *eager);
    materialize(*module);
  }
}

TEST_CASE("tensors are materialized in any order, by operators on any thread") {
  const auto build = [] { return torch::nn::Sequential(torch::nn::Linear(30, 20), torch::nn::Linear(20, 10)); };
  torch::manual_seed(3);
  auto eager = build();
  torch::manual_seed(3);
  auto module = init_empty_weights(build);
  CHECK(module->parameters()[3].equal(eager->parameters()[3]));
  CHECK(is_deferred(module->parameters()[0]));
  std::vector<std::thread> threads;
  std::vector<torch::Tensor> outputs(4);
  for (auto& output : outputs) threads.emplace_back([&] { output = module->forward(torch::ones({2, 30})).detach(); });
  for (auto& thread : threads) thread.join();
  for (const auto& output : outputs) CHECK(output.equal(eager->forward(torch::ones({2, 30}))));
  module->forward(torch::ones({2, 30})).sum().backward();
  eager->forward(torch::ones({2, 30})).sum().backward();
  CHECK(module->parameters()[0].grad().equal(eager->parameters()[0].grad()));
}

TEST_CASE("a change of the dtype keeps the module deferred") {
  for (const auto dtype : {torch::kDouble, torch::kBFloat16}) {
    torch::manual_seed(3);
    torch::nn::Linear eager(40, 20);
    eager->to(dtype);
    torch::manual_seed(3);
    auto module = init_empty_weights([] { return torch::nn::Linear(40, 20); });
    module->to(dtype);
    CHECK(is_deferred(module->weight));
    materialize(*module);
    check_equal(*module, *eager);
  }
}

TEST_CASE("memory that is absent is refused with the remedy") {
  auto module = init_empty_weights([] { return torch::nn::Linear(4, 3); });
  const std::string text =
      "the tensor has no memory yet, because init_empty_weights() built it; call accelerate::materialize(module) "
      "before data_ptr() and torch::save()";
  CHECK(refusal<c10::Error>([&] { (void)module->weight.data_ptr(); }).find(text) != std::string::npos);
  CHECK(refusal<c10::Error>([&] {
          std::stringstream stream;
          torch::save(module, stream);
        }).find(text) != std::string::npos);
  materialize(*module);
  CHECK(module->weight.data_ptr() != nullptr);
  std::stringstream stream;
  torch::save(module, stream);
  auto loaded = init_empty_weights([] { return torch::nn::Linear(4, 3); });
  torch::load(loaded, stream);
  CHECK(loaded->weight.equal(module->weight));
}

TEST_CASE("exceptions, nested calls and other threads") {
  CHECK_THROWS_AS(init_empty_weights([]() -> int {
                    const torch::nn::Linear lost(3, 3);
                    throw std::runtime_error("build");
                  }),
                  std::runtime_error);
  CHECK_FALSE(is_deferred(torch::zeros({3})));
  torch::Tensor other, inner, outer;
  init_empty_weights([&] {
    std::thread([&] { other = torch::ones({3}); }).join();
    inner = init_empty_weights([] { return torch::ones({3}); });
    outer = torch::ones({3});
  });
  CHECK_FALSE(is_deferred(other));
  CHECK(is_deferred(inner));
  CHECK(is_deferred(outer));
  CHECK(other.equal(inner));
  CHECK(other.equal(outer));
}

TEST_CASE("an in-place fill of a leaf that requires a gradient is the error of LibTorch") {
  CHECK_THROWS_AS(init_empty_weights([] {
                    auto leaf = torch::empty({3}).requires_grad_();
                    leaf.fill_(1);
                  }),
                  c10::Error);
}

TEST_CASE("tied tensors stay tied, and views see the values") {
  const auto module = init_empty_weights([] {
    torch::nn::Embedding tokens(10, 6);
    torch::nn::Linear head(6, 10);
    head->weight = head->register_parameter("tied", tokens->weight);
    return std::pair(tokens, head);
  });
  CHECK(module.first->weight.is_same(module.second->weight));
  const auto view = module.first->weight.t();
  materialize(*module.first);
  CHECK(view.equal(module.second->weight.t()));
}

TEST_CASE("generators given by the caller advance as in an ordinary build") {
  const auto fill = [](at::Generator generator) {
    auto values = torch::empty({40});
    values.normal_(0, 1, generator);
    return values;
  };
  at::Generator first = at::detail::createCPUGenerator(5), second = at::detail::createCPUGenerator(5);
  const auto eager = fill(first);
  const auto deferred = init_empty_weights([&] { return fill(second); });
  CHECK(is_deferred(deferred));
  CHECK(first.get_state().equal(second.get_state()));
  CHECK(eager.equal(deferred));
}

namespace {

int64_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  int64_t pages = 0;
  status >> pages >> pages;
  return pages * 4096;
}

}  // namespace

TEST_CASE("a module of 1 GB is built in less than 5 % of its memory") {
  const int64_t before = resident_bytes();
  int64_t peak = 0;
  auto module = init_empty_weights([&] {
    torch::nn::Sequential layers;
    for (int64_t i = 0; i < 64; ++i) {
      layers->push_back(torch::nn::Linear(2048, 2048));
      peak = std::max(peak, resident_bytes() - before);
    }
    return layers;
  });
  int64_t bytes = 0;
  for (const auto& parameter : module->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
  CHECK(bytes > (1 << 30));
  CHECK(peak < bytes / 20);
}
