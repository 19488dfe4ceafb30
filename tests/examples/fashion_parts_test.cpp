// SPDX-License-Identifier: Apache-2.0
// What examples/fashion_resnet is made of: the network, the curve.
#include "tests/testing.hpp"
//
#include "examples/animator.hpp"
#include "examples/resnet18.hpp"
#include "tests/temporary_folder.hpp"

TEST_CASE("the network is the course's: so many parameters, logits per image, weights normal with deviation 0.01") {
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

TEST_CASE("the curve grows with each epoch, in the terminal and as a line through its points") {
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
