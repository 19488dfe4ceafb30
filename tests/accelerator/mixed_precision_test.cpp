// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/autocast_mode.h>

#include <thread>

#include "accelerate/base/log.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/data/sources/files.hpp"
#include "tests/gradient/operators.hpp"

using accelerate::Accelerator;
using accelerate::Precision;

namespace {

const accelerate::AcceleratorOptions kBf16{.cpu = true, .mixed_precision = Precision::bf16};

/// Records the dtype in which its products were computed.
struct SeesImpl : torch::nn::LinearImpl {
  SeesImpl() : torch::nn::LinearImpl(4, 4) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto product = torch::nn::LinearImpl::forward(x);
    seen = product.scalar_type();
    if (fails) throw std::runtime_error("the forward fails");
    return product;
  }
  at::ScalarType seen = at::kFloat;
  bool fails = false;
};
TORCH_MODULE(Sees);

torch::Tensor x() { return torch::ones({2, 4}); }

/// A result with tensors of all kinds.
struct Answer {
  torch::Tensor logits;
  std::vector<torch::Tensor> hidden;
  std::map<std::string, torch::Tensor> named;
  std::optional<torch::Tensor> maybe;
  int64_t count = 0;
};
auto tree_members(Answer& answer) { return std::tie(answer.logits, answer.hidden, answer.named, answer.maybe); }

struct AnswersImpl : torch::nn::Module {
  Answer forward(const torch::Tensor& input) {
    const auto y = linear(input);
    REQUIRE((y.scalar_type() == at::kBFloat16));
    return {y, {y, input}, {{"y", y}}, y, 7};
  }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Answers);

struct Drawn {
  torch::Tensor image, mean;
};
struct DrawsImpl : torch::nn::Module {
  Drawn forward(const torch::Tensor& input) { return {linear(input), input}; }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
struct Report {
  std::string text;
  std::vector<double> numbers;
};
struct ReportsImpl : torch::nn::Module {
  Report forward(const torch::Tensor& input) { return {"ran", {input.sum().item<double>()}}; }
};
class Distribution {
 public:
  explicit Distribution(torch::Tensor mean) : mean_(std::move(mean)) {}
  [[nodiscard]] const torch::Tensor& mean() const { return mean_; }

 private:
  torch::Tensor mean_;
};
struct DistributesImpl : torch::nn::Module {
  Distribution forward(const torch::Tensor& input) { return Distribution(linear(input)); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};

struct RefersImpl : torch::nn::Module {
  torch::Tensor& forward(const torch::Tensor& input) { return last = linear(input); }
  torch::Tensor last;
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Refers);

}  // namespace

TEST_CASE("a prepared model computes in bf16 and returns float32; parameters and gradients are float32") {
  Accelerator accelerator(kBf16);
  Sees net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto y = model(x());
  CHECK((net->seen == at::kBFloat16));
  CHECK((y.scalar_type() == at::kFloat));
  accelerator.backward(y.sum());
  optimizer.step();
  for (const auto& parameter : net->parameters()) {
    CHECK((parameter.scalar_type() == at::kFloat));
    CHECK((parameter.grad().scalar_type() == at::kFloat));
  }
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  CHECK(accelerator.mixed_precision() == Precision::bf16);
}

TEST_CASE("evaluation uses the same dtypes: in eval mode, without gradients, in an evaluation model") {
  Accelerator accelerator(kBf16);
  Sees net;
  auto model = accelerator.prepare(net);
  model.eval();
  const torch::NoGradGuard no_grad;
  CHECK((model(x()).scalar_type() == at::kFloat));
  CHECK((net->seen == at::kBFloat16));
  Sees other;
  CHECK((accelerator.prepare_model(other, /*evaluation_mode=*/true)(x()).scalar_type() == at::kFloat));
  CHECK((other->seen == at::kBFloat16));
}

TEST_CASE("outputs of any structure are returned in float32, and tensors of other dtypes are unchanged") {
  Accelerator accelerator(kBf16);
  auto model = accelerator.prepare(Answers());
  const auto input = x().to(at::kDouble).to(at::kFloat);
  const Answer answer = model(input);
  CHECK((answer.logits.scalar_type() == at::kFloat));
  CHECK((answer.hidden.at(0).scalar_type() == at::kFloat));
  CHECK(answer.hidden.at(1).is_same(input));
  CHECK((answer.named.at("y").scalar_type() == at::kFloat));
  CHECK((answer.maybe->scalar_type() == at::kFloat));
  CHECK(answer.count == 7);
  auto refers = accelerator.prepare(Refers());
  CHECK((refers(x()).scalar_type() == at::kFloat));
  CHECK((refers->last.scalar_type() == at::kBFloat16));  // the module's own tensor is unchanged
}

TEST_CASE("low precision refuses a result type without tree_members(), with the remedy") {
  Accelerator full({.cpu = true});
  CHECK((full.prepare(std::make_shared<DrawsImpl>())(x()).image.scalar_type() == at::kFloat));
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    Accelerator accelerator({.cpu = true, .mixed_precision = precision});
    auto model = accelerator.prepare(std::make_shared<DrawsImpl>());
    CHECK_THROWS_WITH_AS((void)model(x()),
                         doctest::Contains("forward: with mixed precision the tensors in its result would not become "
                                           "Float, because (anonymous namespace)::Drawn is or holds a struct without "
                                           "tree_members(), or a variant; give the struct a member function auto "
                                           "tree_members() { return std::tie(...); } that names its members"),
                         accelerate::Error);
    CHECK(accelerator.prepare(std::make_shared<ReportsImpl>())(x()).text == "ran");
  }
}

TEST_CASE("a result with unknown members is returned unchanged, and one warning names its type") {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  Accelerator accelerator(kBf16);
  auto model = accelerator.prepare(std::make_shared<DistributesImpl>());
  for (int i = 0; i < 2; ++i) CHECK((model(x()).mean().scalar_type() == at::kBFloat16));
  accelerate::base::set_log_handler(before);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].ends_with(
      "forward: with mixed precision the tensors in its result do not become Float if they are members of "
      "(anonymous namespace)::Distribution, because the members of this class are unknown; give it a member function "
      "auto tree_members() { return std::tie(...); } that returns its members"));
}

TEST_CASE("autocast() uses the dtypes of the model; disabled inside, models still use their own") {
  Accelerator accelerator(kBf16);
  auto model = accelerator.prepare(Sees());
  const auto product = [] { return x().mm(torch::ones({4, 4})).scalar_type(); };
  CHECK((product() == at::kFloat));
  {
    const auto block = accelerator.autocast();
    CHECK((product() == at::kBFloat16));
    {
      const auto off = accelerator.autocast({.enabled = false});
      CHECK((product() == at::kFloat));
      model(x());
      CHECK((model->seen == at::kBFloat16));
      CHECK((product() == at::kFloat));
    }
    CHECK((product() == at::kBFloat16));
  }
  CHECK((product() == at::kFloat));
  Accelerator plain({.cpu = true, .mixed_precision = Precision::no});
  const auto block = plain.autocast();
  CHECK((product() == at::kFloat));
}

TEST_CASE("a forward in autocast() uses the weights of an earlier step in the same region") {
  Accelerator accelerator(kBf16);
  Sees net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  const auto block = accelerator.autocast();
  const auto before = model(x());
  accelerator.backward(before.sum());
  optimizer.step();
  CHECK_FALSE(at::equal(model(x()), before));
}

TEST_CASE("an autocast() block around a window casts each weight once a step, with the same gradients") {
  const auto trained = [](bool in_block) {
    torch::manual_seed(3);
    Accelerator accelerator({.cpu = true, .mixed_precision = Precision::bf16, .gradient_accumulation_steps = 3});
    const accelerate::nn::Linear net(4, 4);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
    int64_t casts = 0;
    const auto window_of_steps = [&] {
      for (int64_t i = 0; i < 3; ++i) {
        const auto window = accelerator.accumulate(model);
        const torch::Tensor input = (x() + static_cast<double>(i)).to(at::kBFloat16);
        torch::Tensor output;
        const auto called = gradient_testing::operators_of([&] { output = model(input); });
        casts += called.contains("aten::_to_copy") ? called.at("aten::_to_copy") : 0;
        accelerator.backward(output.square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    for (int64_t step = 0; step < 2; ++step) {
      if (!in_block) {
        window_of_steps();
        continue;
      }
      const auto block = accelerator.autocast();
      window_of_steps();
    }
    return std::pair(casts, net->weight.detach().clone());
  };
  const auto [casts, weight] = trained(false);
  const auto [casts_in_block, weight_in_block] = trained(true);
  CHECK(casts == 2 * 3 * 3);  // weight, bias and output of each forward
  CHECK(casts_in_block == 2 * (2 + 3));
  CHECK(torch::equal(weight_in_block, weight));
}

TEST_CASE("a forward that throws ends its autocast region") {
  Accelerator accelerator(kBf16);
  auto model = accelerator.prepare(Sees());
  model->fails = true;
  CHECK_THROWS_WITH(model(x()), "the forward fails");
  CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  CHECK((x().mm(torch::ones({4, 4})).scalar_type() == at::kFloat));
}

TEST_CASE("a model uses its own dtypes on a loader's worker thread and on any other thread") {
  Accelerator accelerator(kBf16);
  auto model = accelerator.prepare(Sees());
  std::thread([&] {
    CHECK((model(x()).scalar_type() == at::kFloat));
    CHECK((model->seen == at::kBFloat16));
  }).join();
  model->seen = at::kFloat;
  const auto embedded =
      accelerate::data::map(accelerate::data::memory_source(torch::ones({4, 4}), torch::arange(4)), [&](auto batch) {
        const torch::NoGradGuard no_grad;
        batch.data = model(batch.data);
        return batch;
      });
  auto loader = accelerator.prepare(accelerate::data::Loader(embedded, {.batch_size = 2, .num_workers = 1}));
  for (auto& batch : loader) CHECK((batch.data.scalar_type() == at::kFloat));
  CHECK((model->seen == at::kBFloat16));
}

TEST_CASE("a TorchScript module computes in bf16 and returns float32") {
  torch::manual_seed(3);
  const auto weight = torch::randn({4, 4});
  torch::jit::Module script("net");
  script.register_parameter("w", weight.clone().requires_grad_(), false);
  script.define("def forward(self, x):\n  y = torch.mm(x, self.w)\n  return (y, y.dtype)\n");
  Accelerator accelerator(kBf16);
  auto scripted = accelerator.prepare(script);
  const auto expected = x().to(at::kBFloat16).mm(weight.to(at::kBFloat16)).to(at::kFloat);
  for (int call = 0; call < 3; ++call) {  // profiled, optimised, run
    const auto result = scripted({x()});
    const auto& elements = result.toTupleRef().elements();
    CHECK((elements[0].toTensor().scalar_type() == at::kFloat));
    CHECK((elements[1].toScalarType() == at::kBFloat16));
    CHECK(at::equal(elements[0].toTensor(), expected));
  }
}

TEST_CASE("a TorchScript module trains in fp16 with loss scaling, and an overflow skips the step") {
  torch::jit::Module script("net");
  script.register_parameter("w", torch::full({4, 4}, 0.25).requires_grad_(), false);
  script.define("def forward(self, x):\n  y = torch.mm(x, self.w)\n  return (y, y.dtype)\n");
  const at::Tensor w = script.attr("w").toTensor();
  Accelerator accelerator({.cpu = true, .mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = 1024}});
  auto [model, optimizer] = accelerator.prepare(script, torch::optim::SGD(std::vector<at::Tensor>{w}, 0.5));
  const auto step_on = [&, &model = model, &optimizer = optimizer](const at::Tensor& input) {
    const auto result = model({input});
    const auto& elements = result.toTupleRef().elements();
    CHECK((elements[1].toScalarType() == at::kHalf));
    CHECK((elements[0].toTensor().scalar_type() == at::kFloat));
    accelerator.backward(elements[0].toTensor().sum());
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int64_t step = 1; step <= 3; ++step) {  // profiled, optimised, run
    step_on(x());
    CHECK(
        at::equal(w.detach(), torch::full({4, 4}, 0.25 - static_cast<double>(step))));  // two rows of ones, half of it
  }
  step_on(x() * std::numeric_limits<float>::infinity());
  CHECK(at::equal(w.detach(), torch::full({4, 4}, -2.75)));
  CHECK(optimizer.step_was_skipped());
  CHECK(accelerator.loss_scale() == 512);
}

TEST_CASE("a custom policy: outputs unchanged or float64, bfloat16 parameters without autocast") {
  using accelerate::precision::Policy;
  const auto trained = [](const Policy& policy, at::ScalarType input, at::ScalarType output) {
    Accelerator accelerator({.cpu = true, .precision_policy = policy});
    torch::manual_seed(3);
    Sees net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.125));
    const at::Tensor before = net->weight.detach().clone();
    const at::Tensor y = model(x().to(input));
    CHECK((net->seen == at::kBFloat16));
    CHECK((y.scalar_type() == output));
    const auto expected = torch::nn::functional::linear(x().to(at::kBFloat16), before.to(at::kBFloat16),
                                                        net->bias.detach().to(at::kBFloat16));
    CHECK(at::equal(y.detach(), expected.to(output)));
    accelerator.backward(y.sum());
    optimizer.step();
    CHECK((net->weight.scalar_type() == policy.parameter.value_or(at::kFloat)));
    CHECK(torch::allclose(net->weight.detach().to(at::kFloat), before.to(at::kFloat) - 0.25, 0, 0.01));
  };
  trained({.compute = at::kBFloat16}, at::kFloat, at::kBFloat16);
  trained({.compute = at::kBFloat16, .output = at::kDouble}, at::kFloat, at::kDouble);
  trained({.parameter = at::kBFloat16}, at::kBFloat16, at::kBFloat16);
  trained({.parameter = at::kBFloat16, .output = at::kFloat}, at::kBFloat16, at::kFloat);
}

TEST_CASE("bf16 ranks reach the weights of one process") {
  const auto trained = [](int64_t ranks) {
    torch::Tensor weight;
    std::mutex one_at_a_time;
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          auto net = [&] {
            const std::lock_guard lock(one_at_a_time);
            torch::manual_seed(5);
            return torch::nn::Linear(4, 1);
          }();
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
          for (int step = 0; step < 4; ++step) {
            const auto all = torch::arange(16, torch::kFloat).reshape({4, 4}) / 16 + step;
            const int64_t shard_spec = 4 / ranks;
            const auto mine = all.narrow(0, accelerator.process_index() * shard_spec, shard_spec);
            optimizer.zero_grad();
            accelerator.backward(model(mine).pow(2).mean());
            optimizer.step();
          }
          if (accelerator.is_main_process()) weight = net->weight.detach().clone();
        },
        kBf16);
    return weight;
  };
  CHECK(at::allclose(trained(2), trained(1), 1e-2, 1e-3));
}

TEST_CASE("the environment sets mixed precision, and one warning reports that fp16 is slow on the CPU") {
  const auto lines = test_files::logged([] {
    setenv("ACCELERATE_MIXED_PRECISION", "fp16", 1);
    Accelerator accelerator({.cpu = true});
    Accelerator another({.cpu = true});
    unsetenv("ACCELERATE_MIXED_PRECISION");
    CHECK(accelerator.mixed_precision() == Precision::fp16);
    Sees net;
    auto model = accelerator.prepare(net);
    CHECK((model(x()).scalar_type() == at::kFloat));
    CHECK((net->seen == at::kHalf));
  });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("mixed_precision: fp16 on the CPU is computed as requested, but slowly (BasicNet's step takes 11 "
                      "times float32's); bf16 is fast there") != std::string::npos);
}

TEST_CASE("fp16 refuses a model with half parameters, except for evaluation") {
  Accelerator accelerator({.cpu = true, .mixed_precision = Precision::fp16});
  torch::nn::Linear half(4, 4);
  half->to(at::kHalf);
  CHECK_THROWS_WITH(
      (void)accelerator.prepare(half),
      doctest::Contains("prepare: parameter weight is float16, with mixed_precision fp16 it must be float32: fp16 "
                        "computes in float16 by itself, and the gradients of float16 parameters cannot be unscaled; "
                        "model->to(torch::kFloat) first"));
  CHECK((accelerator.prepare_model(half, /*evaluation_mode=*/true)(x()).scalar_type() == at::kFloat));
}
