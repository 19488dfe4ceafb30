// SPDX-License-Identifier: Apache-2.0
// Parts of examples/fashion_resnet: the network and the curve.
#include "tests/testing.hpp"
//
#include "examples/animator.hpp"
#include "examples/devices_of_rank.hpp"
#include "examples/resnet18.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

TEST_CASE("the network matches the course: number of parameters, logits per image, weights with deviation 0.01") {
  torch::manual_seed(3);
  auto net = resnet18();
  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  CHECK(parameters == 11'175'818);
  int64_t layers = 0;
  const auto looks = [&](const torch::Tensor& weight) {
    ++layers;
    const auto enough = 4 / std::sqrt(static_cast<double>(weight.numel()));  // four deviations of a mean
    CHECK(weight.std().item<double>() == doctest::Approx(0.01).epsilon(enough));
    CHECK(std::abs(weight.mean().item<double>()) < 0.01 * enough);
  };
  net->apply([&](torch::nn::Module& module) {
    if (const auto* conv = module.as<torch::nn::Conv2d>()) looks(conv->weight);
    if (const auto* linear = module.as<torch::nn::Linear>()) looks(linear->weight);
  });
  CHECK(layers == 1 + 8 * 2 + 3 + 1);
  net->eval();
  const torch::NoGradGuard no_grad;
  CHECK(net->forward(torch::zeros({2, 1, 8, 8})).sizes() == at::IntArrayRef{2, 10});
}

TEST_CASE("the curve grows with each epoch, in the terminal and as a line in the SVG") {
  const testing::TemporaryFolder folder;
  Animator animator("test accuracy", 4, folder / "curve.svg");
  animator.add(0.1);
  CHECK(animator.terminal() == "test accuracy ▁ 0.100 (epoch 1 of 4)");
  animator.add(0.55);
  animator.add(1.0);
  CHECK(animator.terminal() == "test accuracy ▁▅█ 1.000 (epoch 3 of 4)");
  const std::string svg = testing::text_of(folder / "curve.svg");
  CHECK(svg == animator.svg());
  CHECK(svg.find("<polyline points=\"40.0,263.0 180.0,141.5 320.0,20.0 \"") != std::string::npos);
  size_t points = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++points;
  CHECK(points == 3);
}

TEST_CASE("a curve file that cannot be written is reported with its name before the first epoch") {
  const testing::TemporaryFolder folder;
  const std::string file = folder / "none/curve.svg";
  CHECK(testing::refusal<std::runtime_error>([&] { Animator("test accuracy", 4, file).write(); }) ==
        file + " cannot be written: No such file or directory");
  Animator animator("test accuracy", 4, folder / "curve.svg");
  animator.write();
  CHECK(testing::text_of(folder / "curve.svg") == animator.svg());
}

TEST_CASE("ranks of a machine have separate devices, and too many ranks are refused with both numbers") {
  using Devices = std::vector<torch::Device>;
  const torch::Device cpu("cpu"), first("cuda:0"), second("cuda:1");
  CHECK(devices_of_rank(cpu, 2, 4, 0) == Devices{cpu, cpu});
  CHECK(devices_of_rank(first, 3, 1, 3) == Devices{first, second, torch::Device("cuda:2")});
  CHECK(devices_of_rank(first, 2, 2, 4) == Devices{first, torch::Device("cuda:2")});
  CHECK(devices_of_rank(second, 2, 2, 4) == Devices{second, torch::Device("cuda:3")});
  CHECK(devices_of_rank(first, 1, 8, 1) == Devices{first});  // ranks that share it on request
  const auto refused = [&](int64_t count, int64_t ranks, int64_t visible) {
    return testing::refusal<std::invalid_argument>([&] { devices_of_rank(first, count, ranks, visible); });
  };
  CHECK(refused(4, 1, 1) ==
        "--num_devices is 4 for each of 1 rank of this machine, which has 1 cuda device; give at most 1");
  CHECK(refused(3, 2, 5) ==
        "--num_devices is 3 for each of 2 ranks of this machine, which has 5 cuda devices; give at most 2");
}

TEST_CASE("the network learns four noisy patterns in a few steps and classifies unseen samples") {
  torch::manual_seed(0);
  auto net = resnet18();
  const auto labels = torch::arange(8) % 4;
  const auto patterns = torch::randn({4, 1, 8, 8});
  const auto drawn = [&] { return patterns.index_select(0, labels) + 0.3 * torch::randn({8, 1, 8, 8}); };
  const auto images = drawn();
  torch::optim::SGD sgd(net->parameters(), 0.005);
  const auto loss_of = [&] { return torch::nn::functional::cross_entropy(net->forward(images), labels); };
  const double before = loss_of().item<double>();
  for (int step = 0; step < 10; ++step) {
    sgd.zero_grad();
    loss_of().backward();
    sgd.step();
  }
  const torch::NoGradGuard no_grad;
  CHECK(before > 1.5);  // 2.3 by chance for ten classes
  CHECK(loss_of().item<double>() < 0.4);
  // Uses batch statistics, because running statistics are inaccurate after few batches.
  CHECK(net->forward(drawn()).argmax(1).eq(labels).sum().item<int64_t>() >= 6);
}
