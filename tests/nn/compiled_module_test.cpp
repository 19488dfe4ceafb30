// SPDX-License-Identifier: Apache-2.0
// Compiled modules train as eager PyTorch does, and refuse calls for which they were not compiled.
#include "tests/nn/compiled_support.hpp"
//
#include <algorithm>
#include <sstream>
#include <thread>

using namespace compiled_testing;
using testing::refusal;

namespace {

torch::optim::SGD sgd_of(const CompiledModule& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

/// Trains like train() in compiled_packages.py and compares losses, gradients and state.
template <typename Loss>
void check_trains_like_eager(CompiledModule& net, torch::optim::Optimizer&& optimizer, const Expected& expected,
                             const Loss& loss) {
  const at::Tensor losses = expected.tensor("losses");
  double worst = 0;
  for (int64_t step = 0; step < losses.size(0); ++step) {
    optimizer.zero_grad();
    const at::Tensor value = loss(expected.batch("x", step), expected.batch("y", step));
    value.backward();
    worst = std::max(worst, std::abs(value.template item<double>() - losses[step].item<double>()));
    if (step == 0) {
      const auto parameters = net->named_parameters();
      for (const auto& [name, gradient] : expected.tensors("gradients")) {
        CAPTURE(name);
        CHECK(difference(parameters[name].grad(), gradient) < kTolerance);
      }
    }
    optimizer.step();
  }
  CHECK(worst < kTolerance);
  const auto state = expected.tensors("state");
  auto seen = net->named_parameters();
  for (const auto& item : net->named_buffers()) seen.insert(item.key(), item.value());
  for (const auto& item : seen) {
    CAPTURE(item.key());
    CHECK(difference(item.value(), state.at(item.key())) < kTolerance);
  }
}

at::Tensor some_rows(int64_t n) { return torch::arange(n * 6, torch::kDouble).reshape({n, 6}).sin(); }

std::string refused_call(CompiledModule& net, const std::vector<at::Tensor>& inputs) {
  return refusal([&] { (void)net->forward_all(inputs); });
}

}  // namespace

TEST_CASE("an MLP with BatchNorm, a frozen parameter and tied weights trains as in PyTorch, for several batch sizes") {
  const Expected expected("mlp");
  auto net = compiled_mlp();
  check_trains_like_eager(net, sgd_of(net), expected, [&](const at::Tensor& x, const at::Tensor& y) {
    return torch::mse_loss(net->forward(x), y);
  });
  CHECK_FALSE(net->named_parameters()["fc.bias"].requires_grad());
  CHECK_FALSE(net->named_parameters()["fc.bias"].grad().defined());
  net->eval();
  const torch::NoGradGuard no_grad;
  CHECK(difference(net->forward(expected.batch("x", 0)), expected.tensor("evaluated")) < kTolerance);
}

TEST_CASE("names equal Python's: parameters in order, buffers of state_dict, further names of tied weights") {
  const Expected expected("mlp");
  auto net = compiled_mlp();
  CHECK(net->named_parameters().keys() == expected.names("parameters"));
  auto names = net->named_parameters().keys();
  for (const auto& item : net->named_buffers()) names.push_back(item.key());
  names.emplace_back("b.weight");  // tied
  std::sort(names.begin(), names.end());
  std::vector<std::string> state;
  for (const auto& item : expected.tensors("state")) state.push_back(item.first);
  CHECK(names == state);
  CHECK(net->aliases() == std::vector<std::string>{"b.weight = a.weight"});
  std::ostringstream text;
  text << net;
  CHECK(text.str().find("accelerate::nn::CompiledModule(" + package("mlp") + ", cpu)") == 0);
}

TEST_CASE("dropout has PyTorch's random numbers; channels_last, two outputs, gradient of the input") {
  const Expected expected("conv");
  CompiledModule net(package("conv"), kTrusted);
  CHECK(net->named_parameters()["first.weight"].is_contiguous(at::MemoryFormat::ChannelsLast));
  at::Tensor first;
  torch::manual_seed(7);
  check_trains_like_eager(net, sgd_of(net), expected, [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor input = x.detach().clone(at::MemoryFormat::Preserve).requires_grad_(true);
    if (!first.defined()) first = input;
    const auto outputs = net->forward_all({input});
    CHECK_FALSE(outputs[1].requires_grad());
    CHECK(outputs[1].equal(outputs[0].argmax(1)));
    return torch::cross_entropy_loss(outputs[0], y);
  });
  CHECK(difference(first.grad(), expected.tensor("input_gradient")) < kTolerance);
  CHECK(refusal([&] { net->forward(first); }) == error_of("conv", "the module returns 2 tensors; call forward_all()"));
}

TEST_CASE("a GPT with int64 tokens and a tied head trains by AdamW as in PyTorch, for several batch sizes") {
  const Expected expected("gpt");
  CompiledModule net(package("gpt"), kTrusted);
  CHECK(net->aliases() == std::vector<std::string>{"head.weight = token.weight"});
  const auto gradients = expected.tensors("gradients");
  CHECK(net->named_parameters().keys() == expected.names("parameters"));
  CHECK(gradients.size() == net->parameters().size());
  check_trains_like_eager(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-2)), expected,
                          [&](const at::Tensor& x, const at::Tensor& y) {
                            return torch::cross_entropy_loss(net->forward(x).flatten(0, 1), y.flatten());
                          });
  const torch::NoGradGuard no_grad;  // without dropout the training graph is that of the evaluation
  const at::Tensor tokens = expected.batch("x", 0);
  CHECK(difference(net->forward(tokens), expected.tensor("evaluated")) < kTolerance);
  const at::Tensor changed = tokens.clone();
  changed.select(1, -1).copy_((changed.select(1, -1) + 1) % 11);
  CHECK(net->forward(changed).narrow(1, 0, 4).equal(net->forward(tokens).narrow(1, 0, 4)));  // causal
  CHECK_FALSE(net->forward(changed).equal(net->forward(tokens)));
}

TEST_CASE("tokens with another dtype or outside of the vocabulary are refused, and negative ones count from its end") {
  CompiledModule net(package("gpt"), kTrusted);
  CHECK(refused_call(net, {torch::zeros({2, 5}, torch::kInt)}) ==
        error_of("gpt",
                 "input 0 has dtype Int, the package was compiled for Long; convert it, or export the module with this "
                 "dtype"));
  for (const int64_t token : {11, -12}) {
    CAPTURE(token);
    const std::string text = refused_call(net, {torch::full({2, 5}, token, torch::kLong)});
    CHECK(text.starts_with(error_of("gpt",
                                    "the compiled forward failed; it printed the reason to stderr, such as an index "
                                    "outside of an embedding; correct the inputs (")));
  }
  const torch::NoGradGuard no_grad;
  const auto scores = [&](int64_t token) { return net->forward(torch::full({2, 5}, token, torch::kLong)); };
  CHECK(scores(-3).equal(scores(8)));  // Inductor's code; eager PyTorch refuses it
}

TEST_CASE("eval() never applies dropout, with gradients enabled too, and its outputs have no backward") {
  const Expected expected("conv");
  CompiledModule net(package("conv"), kTrusted);
  const torch::NoGradGuard no_grad;
  for (auto& [name, value] : expected.tensors("state")) net->named_parameters()[name].copy_(value);
  net->eval();
  const at::Tensor x = expected.batch("x", 0);
  CHECK(difference(net->forward_all({x})[0], expected.tensor("evaluated")) < kTolerance);
  const torch::AutoGradMode grad(true);
  const auto outputs = net->forward_all({x});
  CHECK(difference(outputs[0], expected.tensor("evaluated")) < kTolerance);
  CHECK(refusal([&] { outputs[0].sum().backward(); }) ==
        error_of("conv", "the evaluation graph has no backward; call train() before the forward"));
}

TEST_CASE("training without gradients applies dropout and updates statistics, as in eager mode") {
  const torch::NoGradGuard no_grad;
  CompiledModule net(package("conv"), kTrusted);
  const at::Tensor x = Expected("conv").batch("x", 0);
  CHECK_FALSE(net->forward_all({x})[0].equal(net->forward_all({x})[0]));
  auto other = compiled_mlp();
  other->forward(some_rows(4));
  CHECK(other->named_buffers()["norm.num_batches_tracked"].item<int64_t>() == 1);
}

TEST_CASE("a package without evaluation graph refuses eval() instead of running the training graph") {
  CompiledModule net(package("block"), kTrusted);
  net->eval();
  CHECK(
      refused_call(net, {torch::ones({5, 4})}) ==
      error_of(
          "block",
          "the package has no evaluation graph, and the training graph applies dropout and updates statistics; export "
          "the module with evaluation=True"));
}

TEST_CASE("retain_graph keeps activations with padded strides") {
  const Expected expected("padded");
  CompiledModule net(package("padded"), kTrusted);
  const at::Tensor loss = net->forward(expected.batch("x", 0)).square().sum();
  for (const bool retains : {true, true, false}) {
    net->zero_grad();
    loss.backward({}, retains);
    for (const auto& [name, gradient] : expected.tensors("gradients")) {
      CAPTURE(name);
      CHECK(torch::allclose(net->named_parameters()[name].grad(), gradient, 1e-4, 1e-5));
    }
  }
}

TEST_CASE("retain_graph produces the same gradient again; a second backward and a second derivative are refused") {
  auto net = compiled_mlp();
  const at::Tensor weight = net->named_parameters()["a.weight"];
  const at::Tensor loss = net->forward(some_rows(5)).square().mean();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = weight.grad().clone();
  loss.backward({}, /*retain_graph=*/true);
  CHECK(difference(weight.grad(), 2 * once) < 1e-15);
  loss.backward();
  CHECK(difference(weight.grad(), 3 * once) < 1e-15);
  const at::Tensor output = net->forward(some_rows(5));
  const at::Tensor direction = torch::ones_like(output);
  output.backward(direction);
  CHECK(refusal([&] { output.backward(direction); }) ==
        error_of("mlp", "backward ran a second time through one forward; call the first one with retain_graph"));
  CHECK(refusal([&] { net->forward(some_rows(5)).sum().backward({}, {}, /*create_graph=*/true); }) ==
        error_of("mlp", "compiled code has no second derivative; call backward without create_graph"));
}

TEST_CASE("a parameter that changes between forward and backward is refused") {
  auto net = compiled_mlp();
  const at::Tensor loss = net->forward(some_rows(5)).sum();
  {
    const torch::NoGradGuard no_grad;
    net->named_parameters()["a.weight"].mul_(2);
  }
  CHECK(refusal([&] { loss.backward(); }) ==
        error_of(
            "mlp",
            "parameter a.weight was changed in place between forward and backward; step the optimizer after backward"));
}

TEST_CASE("gradients accumulate over forwards that ran before their backwards") {
  auto net = compiled_mlp();
  auto other = compiled_mlp();
  const at::Tensor first = net->forward(some_rows(4)).sum(), second = net->forward(some_rows(6).cos()).sum();
  first.backward();
  second.backward();
  other->forward(some_rows(4)).sum().backward();
  other->forward(some_rows(6).cos()).sum().backward();
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    if (!net->parameters()[i].requires_grad()) continue;
    CHECK(difference(net->parameters()[i].grad(), other->parameters()[i].grad()) < 1e-14);
  }
}

TEST_CASE("other strides have the result of contiguous inputs, and an unaligned buffer is written") {
  auto net = compiled_mlp();
  auto other = compiled_mlp();
  const at::Tensor strided = some_rows(4).t().contiguous().t();
  REQUIRE_FALSE(strided.is_contiguous());
  CHECK(net->forward(strided).equal(other->forward(some_rows(4))));
  const at::Tensor memory = torch::zeros({9}, torch::kDouble);
  auto third = compiled_mlp();
  third->named_buffers()["norm.running_mean"].set_data(memory.narrow(0, 1, 8));
  third->forward(some_rows(4));
  CHECK(memory.narrow(0, 1, 8).equal(net->named_buffers()["norm.running_mean"]));
  const at::Tensor images = Expected("conv").batch("x", 0).detach();
  CompiledModule conv(package("conv"), kTrusted);
  conv->eval();
  CHECK(conv->forward_all({images.contiguous()})[0].equal(conv->forward_all({images})[0]));
}

TEST_CASE("compiled code bumps the version of buffers that it writes") {
  auto net = compiled_mlp();
  const at::Tensor mean = net->named_buffers()["norm.running_mean"];
  const auto before = mean._version();
  net->forward(some_rows(4));
  CHECK(mean._version() == before + 1);
}

TEST_CASE("inputs of another dtype, shape or number are refused with both values") {
  auto net = compiled_mlp();
  CHECK(refused_call(net, {some_rows(4).to(torch::kFloat)}) ==
        error_of("mlp",
                 "input 0 has dtype Float, the package was compiled for Double; "
                 "convert it, or export the module with this dtype"));
  CHECK(
      refused_call(net, {torch::ones({4, 7}, torch::kDouble)}) ==
      error_of("mlp",
               "input 0 is [4, 7], the package was compiled for [any, 6]; export the module with this shape or with a "
               "dynamic size"));
  CHECK(refused_call(net, {some_rows(1)}) ==
        error_of("mlp", "input 0 has 1 in a dynamic dimension, the package was compiled for at least 2"));
  CHECK(refused_call(net, {some_rows(4), some_rows(4)}) ==
        error_of("mlp", "forward was called with 2 inputs, the package was compiled for 1"));
  CHECK(refused_call(net, {at::Tensor()}) == error_of("mlp", "input 0 is undefined, must be a tensor"));
  CHECK(refused_call(net, {some_rows(4).to("meta")}) ==
        error_of("mlp", "input 0 is on meta, the parameters are on cpu; move it with to()"));
  CHECK(refused_call(net, {some_rows(4).requires_grad_(true)}) ==
        error_of(
            "mlp",
            "input 0 requires a gradient, but did not at export, so no gradient was compiled; detach or freeze it, or "
            "export the module with requires_grad_()"));
  net->named_parameters()["fc.bias"].set_requires_grad(true);
  CHECK(refused_call(net, {some_rows(4)}) ==
        error_of("mlp",
                 "parameter fc.bias requires a gradient, but did not at export, so no gradient was compiled; detach or "
                 "freeze it, or export the module with requires_grad_()"));
  net->named_parameters()["fc.bias"].set_requires_grad(false);
  net->to(torch::kFloat);
  CHECK(refused_call(net, {some_rows(4)}).find("has dtype Float, the package was compiled for Double") !=
        std::string::npos);
}

TEST_CASE("a parameter that is frozen after the export gets no gradient") {
  auto net = compiled_mlp();
  net->named_parameters()["a.weight"].set_requires_grad(false);
  net->forward(some_rows(4)).sum().backward();
  CHECK_FALSE(net->named_parameters()["a.weight"].grad().defined());
  CHECK(net->named_parameters()["fc.weight"].grad().defined());
}

TEST_CASE("modules of one package share code and have parameters of their own; blocks fit into Sequential") {
  const CompiledPackage block(package("block"), kTrusted);
  torch::nn::Sequential net(block.module(), block.module());
  {
    const torch::NoGradGuard no_grad;
    net->parameters()[0].mul_(2);
  }
  CHECK_FALSE(net->parameters()[0].equal(net->parameters()[2]));
  net->forward(torch::ones({5, 4})).sum().backward();
  for (const at::Tensor& parameter : net->parameters()) CHECK(parameter.grad().defined());
  CHECK(net->named_parameters().keys() ==
        std::vector<std::string>{"0.linear.weight", "0.linear.bias", "1.linear.weight", "1.linear.bias"});
}

TEST_CASE("modules of one package may run on several threads") {
  const CompiledPackage mlp(package("mlp"), kTrusted);
  const auto gradient = [&](CompiledModule net) {
    for (int64_t n = 2; n < 30; ++n) net->forward(some_rows(n)).square().mean().backward();
    return net->named_parameters()["a.weight"].grad();
  };
  const at::Tensor expected = gradient(mlp.module());
  std::vector<at::Tensor> seen(3);
  std::vector<std::thread> threads;
  for (at::Tensor& one : seen) threads.emplace_back([&] { one = gradient(mlp.module()); });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& one : seen) CHECK(one.equal(expected));
}

TEST_CASE("clone() copies values and modes; torch::save and torch::load restore them") {
  auto net = compiled_mlp();
  net->forward(some_rows(4)).square().mean().backward();
  torch::optim::SGD(net->parameters(), 0.1).step();
  net->eval();
  const auto copy = std::dynamic_pointer_cast<accelerate::nn::CompiledModuleImpl>(net->clone());
  CHECK_FALSE(copy->is_training());
  CHECK_FALSE(copy->named_parameters()["fc.bias"].requires_grad());
  const testing::TemporaryFolder folder;
  torch::save(net, folder / "net.pt");
  auto loaded = compiled_mlp();
  torch::load(loaded, folder / "net.pt");
  loaded->eval();
  const torch::NoGradGuard no_grad;
  CHECK(copy->forward(some_rows(3)).equal(net->forward(some_rows(3))));
  CHECK(loaded->forward(some_rows(3)).equal(net->forward(some_rows(3))));
  net->parameters()[0].zero_();
  CHECK_FALSE(copy->forward(some_rows(3)).equal(net->forward(some_rows(3))));
}

TEST_CASE("the command exports a module, which trains") {
  CompiledModule net(testing::build_folder() + "/compiled_packages/command/linear.pt2", {.trusted = true});
  const at::Tensor x = torch::ones({2, 3});
  net->forward(x).sum().backward();
  CHECK(net->named_parameters()["weight"].grad().equal(torch::full({2, 3}, 2.0F)));
  CHECK(torch::allclose(net->forward(x), torch::linear(x, net->parameters()[0], net->parameters()[1])));
}
