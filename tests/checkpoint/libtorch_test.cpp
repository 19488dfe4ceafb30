// SPDX-License-Identifier: Apache-2.0
// Files of plain LibTorch programs: torch::save() of modules, tensors and optimizers.
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"

namespace checkpoint = accelerate::checkpoint;
namespace fs = std::filesystem;
using checkpoint::NamedTensors;
using testing::SharedFolder;

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    const torch::NoGradGuard no_grad;
    bn->running_mean.uniform_();
    bn->num_batches_tracked.fill_(7);
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(bn(fc(x))); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(4));
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return x * scale;
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList(Block(), Block()));
  torch::Tensor scale = register_parameter("scale", torch::rand({}));
};
TORCH_MODULE(Net);

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors list;
  for (const auto& item : module.named_parameters()) list.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) list.emplace_back(item.key(), item.value());
  return list;
}

void check_holds(const NamedTensors& read, const NamedTensors& expected) {
  CHECK(read.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    const auto found = std::find_if(read.begin(), read.end(), [&](const auto& one) { return one.first == name; });
    REQUIRE(found != read.end());
    CHECK((found->second.scalar_type() == tensor.scalar_type()));
    CHECK(found->second.equal(tensor));
  }
}

/// Three steps of AdamW from the optimizer's current state.
template <typename Model, typename Optimizer, typename Backward>
std::vector<double> losses(Model& model, Optimizer& optimizer, const Backward& backward) {
  std::vector<double> list;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto x = torch::arange(32, torch::kDouble).remainder(7 + step).reshape({8, 4}) / 7;
    auto loss = model->forward(x).square().mean();
    backward(loss);
    optimizer.step();
    list.push_back(loss.template item<double>());
  }
  return list;
}

}  // namespace

TEST_CASE("a module of torch::save() is read under the names of its parameters and buffers") {
  const SharedFolder folder;
  const Net net;
  torch::save(net, (folder.path / "net.pt").string());
  check_holds(checkpoint::read_weights(folder.path / "net.pt", "load_model"), tensors_of(*net));
  accelerate::Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(Net());
  CHECK(accelerator.load_model(model, folder.path / "net.pt") == accelerate::LoadedModel{});
  check_holds(tensors_of(*model.unwrap()), tensors_of(*net));
}

TEST_CASE("tensors and lists of them are read under their numbers, of every dtype and as views") {
  const SharedFolder folder;
  const auto path = folder.path / "tensors.pt";
  const auto base = torch::arange(12, torch::kFloat).reshape({3, 4});
  const std::vector<torch::Tensor> all{base,
                                       base.t(),
                                       base.select(1, 2),
                                       torch::full({2}, 3, torch::kBFloat16),
                                       torch::full({}, -5, torch::kLong),
                                       torch::tensor({true, false}),
                                       torch::empty({0, 3}),
                                       torch::rand({2}, torch::kHalf)};
  torch::save(all, path.string());
  const auto read = accelerate::Accelerator::load(path);
  REQUIRE(read.size() == all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    CHECK((read[std::to_string(i)].scalar_type() == all[i].scalar_type()));
    CHECK(read[std::to_string(i)].equal(all[i]));
  }
  torch::save(base, path.string());
  CHECK(accelerate::Accelerator::load(path)["0"].equal(base));
}

TEST_CASE("a TorchScript file is read without executing it") {
  const SharedFolder folder;
  const auto path = folder.path / "script.pt";
  torch::jit::Module module("Net");
  module.register_parameter("w", torch::rand({2, 3}), false);
  module.register_attribute("names", c10::ListType::ofInts(), c10::List<int64_t>({1, 2}));
  module.define("def forward(self, x):\n  return x + self.w\n");
  module.save(path.string());
  check_holds(checkpoint::read_weights(path, "load"), {{"w", module.attr("w").toTensor()}});
}

TEST_CASE("a truncated archive, and one with forbidden names, is refused with a clear text") {
  const SharedFolder folder;
  const auto path = folder.path / "net.pt";
  torch::save(Net(), path.string());
  fs::resize_file(path, fs::file_size(path) / 2);
  CHECK_THROWS_WITH(
      static_cast<void>(checkpoint::read_weights(path, "load_model")),
      ("load_model: " + path.string() + ": the file was cut: a ZIP file ends with its directory").c_str());
}

TEST_CASE("training of plain LibTorch continues from the module and optimizer files of torch::save()") {
  const SharedFolder folder;
  torch::manual_seed(1);
  Net net;
  net->to(torch::kDouble);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true));
  const auto plain = [](const torch::Tensor& loss) { loss.backward(); };
  losses(net, adamw, plain);
  torch::save(net, (folder.path / "net.pt").string());
  torch::save(adamw, (folder.path / "adamw.pt").string());
  const auto expected = losses(net, adamw, plain);

  accelerate::Accelerator accelerator({.cpu = true});
  Net later;
  later->to(torch::kDouble);
  torch::optim::AdamW later_adamw(later->parameters(), torch::optim::AdamWOptions(0.5));
  torch::load(later_adamw, (folder.path / "adamw.pt").string());
  auto [model, optimizer] = accelerator.prepare(later, later_adamw);
  accelerator.load_model(model, folder.path / "net.pt");
  const auto found = losses(model.unwrap(), optimizer, [&](const torch::Tensor& loss) { accelerator.backward(loss); });
  for (size_t i = 0; i < expected.size(); ++i) CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}
