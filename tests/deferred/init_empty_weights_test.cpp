// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/deferred/deferred_tensor.hpp"
#include "accelerate/deferred/init_empty_weights.hpp"
#include "tests/deferred/resident_memory.hpp"
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
      {"RNN", [] { return RNN(RNNOptions(5, 6).num_layers(2)).ptr(); }},
      {"RNNCell", [] { return RNNCell(5, 6).ptr(); }},
      {"LSTMCell", [] { return LSTMCell(5, 6).ptr(); }},
      {"GRUCell", [] { return GRUCell(5, 6).ptr(); }},
      {"Conv1d", [] { return Conv1d(3, 8, 3).ptr(); }},
      {"Conv3d", [] { return Conv3d(Conv3dOptions(4, 8, 3).groups(2)).ptr(); }},
      {"InstanceNorm2d",
       [] { return InstanceNorm2d(InstanceNorm2dOptions(8).affine(true).track_running_stats(true)).ptr(); }},
      {"Embedding", [] { return Embedding(EmbeddingOptions(10, 17).padding_idx(3)).ptr(); }},
      {"EmbeddingBag", [] { return EmbeddingBag(10, 17).ptr(); }},
      {"MultiheadAttention", [] { return MultiheadAttention(8, 2).ptr(); }},
      {"Bilinear and PReLU",
       [] { return Sequential(Bilinear(3, 4, 5), PReLU(), LayerNorm(LayerNormOptions({5}))).ptr(); }},
      {"TransformerEncoderLayer",
       [] { return TransformerEncoderLayer(TransformerEncoderLayerOptions(8, 2).dim_feedforward(16)).ptr(); }},
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
      "the tensor has no memory yet, because init_empty_weights() built it; before data_ptr() and torch::save(), call "
      "accelerate::materialize() of the module or the tensor";
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
  const auto lone = init_empty_weights([] { return torch::ones({3}); });
  materialize(lone);
  CHECK(lone.data_ptr<float>()[2] == 1);
}

TEST_CASE("fills after the last change of the memory write to it") {
  torch::Tensor view;
  const auto listed = init_empty_weights([&] {
    auto tensor = torch::tensor(std::vector<float>{1, 2, 3});
    view = tensor.detach();
    return tensor;
  });
  materialize(listed);
  CHECK(listed.data_ptr<float>()[1] == 2);
  view.fill_(4);
  CHECK(listed.data_ptr<float>()[1] == 4);
  init_empty_weights([&] { view.fill_(5).mul_(2); });
  CHECK(listed.equal(torch::full({3}, 10.0)));
  torch::manual_seed(2);
  const auto expected = torch::rand({3}), next = torch::rand({3});
  torch::manual_seed(2);
  view.uniform_();
  CHECK(listed.equal(expected));
  CHECK(torch::rand({3}).equal(next));
}

TEST_CASE("inference mode builds the same module") {
  const torch::InferenceMode guard;
  torch::manual_seed(3);
  torch::nn::Linear eager(8, 4);
  torch::manual_seed(3);
  auto module = init_empty_weights([] { return torch::nn::Linear(8, 4); });
  CHECK(is_deferred(module->weight));
  CHECK(module->forward(torch::ones({2, 8})).equal(eager->forward(torch::ones({2, 8}))));
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

TEST_CASE("large tensors draw the numbers of an ordinary fill") {
  constexpr int64_t kPiece = int64_t{1} << 18;
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    for (const int64_t size : {kPiece, 2 * kPiece - 1, 2 * kPiece, 2 * kPiece + 1, 3 * kPiece + 17}) {
      for (const bool is_normal : {false, true}) {
        CAPTURE(c10::toString(dtype));
        CAPTURE(size);
        CAPTURE(is_normal);
        const auto fill = [&] {
          auto values = torch::empty({size}, dtype);
          is_normal ? values.normal_(1, 2) : values.uniform_(-2, 3);
          return values;
        };
        torch::manual_seed(4);
        const auto eager = fill();
        const auto state = at::detail::getDefaultCPUGenerator().get_state();
        torch::manual_seed(4);
        const auto deferred = init_empty_weights(fill);
        CHECK(is_deferred(deferred));
        CHECK(at::detail::getDefaultCPUGenerator().get_state().equal(state));
        CHECK(deferred.equal(eager));
      }
    }
  }
}

TEST_CASE("clones, copies and conversions of deferred tensors are deferred, and have the values of their time") {
  torch::nn::Linear eager(30, 20), module(nullptr);
  torch::manual_seed(3);
  eager = torch::nn::Linear(30, 20);
  torch::manual_seed(3);
  module = init_empty_weights([] { return torch::nn::Linear(30, 20); });
  const auto clone = std::dynamic_pointer_cast<torch::nn::LinearImpl>(module->clone());
  const auto kept = module->weight.detach().clone();
  auto wide = module->weight.to(torch::kDouble);
  auto many_times = kept;
  for (int i = 0; i < 30'000; ++i) many_times = many_times.clone();
  CHECK(wide.requires_grad());
  {
    const torch::NoGradGuard no_grad;
    module->weight.fill_(1);
    module->bias.copy_(clone->bias);
  }
  for (const auto& tensor : {clone->weight, clone->bias, kept, wide, module->weight, module->bias}) {
    CHECK(is_deferred(tensor));
  }
  CHECK(is_deferred(many_times));
  CHECK(many_times.equal(eager->weight));
  CHECK(kept.equal(eager->weight));
  torch::manual_seed(3);
  const auto images = init_empty_weights([] { return torch::rand({2, 3, 4, 5}); });
  const auto last = images.contiguous(torch::MemoryFormat::ChannelsLast);
  CHECK(is_deferred(last));
  CHECK(last.is_contiguous(torch::MemoryFormat::ChannelsLast));
  torch::manual_seed(3);
  CHECK(last.equal(torch::rand({2, 3, 4, 5})));
  CHECK(wide.equal(eager->weight.to(torch::kDouble)));
  CHECK(clone->weight.equal(eager->weight));
  CHECK(module->bias.equal(eager->bias));
  CHECK(module->weight.equal(torch::ones({20, 30})));
  wide.sum().backward();
  CHECK(module->weight.grad().equal(torch::ones({20, 30})));
}

TEST_CASE("a default dtype of the program is used") {
  for (const auto dtype : {torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    CAPTURE(c10::toString(dtype));
    const auto before = torch::get_default_dtype();
    torch::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
    torch::manual_seed(3);
    const torch::nn::Linear eager(40, 20);
    torch::manual_seed(3);
    const auto module = init_empty_weights([] { return torch::nn::Linear(40, 20); });
    torch::set_default_dtype(before);
    CHECK((module->weight.scalar_type() == dtype));
    CHECK(is_deferred(module->weight));
    materialize(*module);
    check_equal(*module, *eager);
  }
}

TEST_CASE("threads that build at the same time draw different numbers") {
  std::vector<torch::nn::Linear> built(4, nullptr);
  std::vector<std::thread> threads;
  for (auto& module : built) {
    threads.emplace_back([&] { module = init_empty_weights([] { return torch::nn::Linear(600, 500); }); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& module : built) CHECK(is_deferred(module->weight));
  for (auto& module : built) {
    for (auto& other : built) {
      if (module.get() != other.get()) CHECK_FALSE(module->weight.equal(other->weight));
    }
  }
}

namespace {

torch::nn::Sequential large_layers() {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < 64; ++i) layers->push_back(torch::nn::Linear(2048, 2048));
  return layers;
}

}  // namespace

TEST_CASE("modules of 1 GB are built and converted in less than 5 % of their memory") {
  const auto check = [](const auto& build) {
    const int64_t before = testing::start_peak();
    auto module = init_empty_weights(build);
    int64_t bytes = 0;
    for (const auto& parameter : module->parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
    CHECK(bytes >= (1 << 30));
    CHECK(testing::peak_bytes() - before < bytes / 20);
    module->to(torch::kDouble);
    module->to(torch::kCPU);
    CHECK(testing::peak_bytes() - before < bytes / 20);
    for (const auto& parameter : module->parameters()) CHECK(is_deferred(parameter));
  };
  check(large_layers);
  check([] { return torch::nn::Embedding(1 << 18, 1 << 10); });
}
