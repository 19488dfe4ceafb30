// SPDX-License-Identifier: Apache-2.0
// fp16 on the CPU, where flags are known immediately. For late flags see tests/stand_in/loss_scaling_test.cpp.
#include "tests/testing.hpp"
//
#include <array>
#include <optional>

#include "tests/accelerator/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

AcceleratorOptions fp16(double init_scale = 1024.0) {
  return {.cpu = true, .mixed_precision = Precision::fp16, .grad_scaler = {.init_scale = init_scale}};
}

/// w starts at 0; the loss w * x has the gradient x.
struct OneFloatImpl : torch::nn::Module {
  OneFloatImpl() { w = register_parameter("w", torch::zeros({1})); }
  torch::Tensor forward(double x) { return w * x; }
  torch::Tensor w;
};
TORCH_MODULE(OneFloat);

using Values = std::vector<double>;

double value(const torch::Tensor& tensor) { return tensor.item<double>(); }

/// An optimizer type without a fused step.
struct MinusGradient : torch::optim::SGD {
  using SGD::SGD;
};

template <typename Optimizer>
void skips_non_finite_steps() {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, Optimizer(net->parameters(), torch::optim::SGDOptions(1.0)));
  CHECK_FALSE(optimizer.step_was_skipped());
  Values weights;
  std::vector<bool> skipped;
  Values scales;
  for (const double x : {1.0, kInf, std::nan(""), 2.0}) {
    accelerator.backward(model(x).sum());
    optimizer.step();
    optimizer.zero_grad();
    weights.push_back(value(net->w));
    skipped.push_back(optimizer.step_was_skipped());
    CHECK(accelerator.optimizer_step_was_skipped() == skipped.back());
    scales.push_back(accelerator.loss_scale());
  }
  CHECK(weights == Values{-1, -1, -1, -3});
  CHECK(skipped == std::vector<bool>{false, true, true, false});
  CHECK(scales == Values{1024, 512, 256, 256});
}

}  // namespace

TEST_CASE("gradients are scaled until the step, which uses unscaled ones; inf and NaN skip it") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  accelerator.backward(model(3.0).sum());
  CHECK(value(net->w.grad()) == 3.0 * 1024);
  optimizer.step();
  CHECK(value(net->w) == -3.0);
  skips_non_finite_steps<torch::optim::SGD>();
  skips_non_finite_steps<MinusGradient>();
}

TEST_CASE("a skipped step does not change the optimizer's counts and averages") {
  Accelerator accelerator(fp16());
  OneFloat net, reference;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.1));
  torch::optim::AdamW stock(reference->parameters(), 0.1);
  for (const double x : {1.0, kInf, 2.0, kInf, 3.0}) {
    accelerator.backward(model(x).sum());
    optimizer.step();
    optimizer.zero_grad();
    if (x == kInf) continue;
    stock.zero_grad();
    reference->forward(x).sum().backward();
    stock.step();
  }
  CHECK(value(net->w) == doctest::Approx(value(reference->w)).epsilon(1e-6));
  auto& state = static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(net->w.unsafeGetTensorImpl()));
  CHECK(state.step() == 3);
}

TEST_CASE("an average with the optimizer's skip flag ignores skipped steps") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
  CHECK_FALSE(optimizer.skip_flag().has_value());
  for (const double x : {1.0, kInf, 2.0}) {
    optimizer.zero_grad();
    accelerator.backward(model(x).sum());
    optimizer.step();
    CHECK(value(*optimizer.skip_flag()) == (x == kInf ? 1 : 0));
    ema.update(optimizer.skip_flag());
  }
  CHECK(ema.updates() == 2);
  CHECK(value(ema.averages()[0]) == -2.0);  // of -1 and -3

  Accelerator plain({.cpu = true});
  OneFloat other;
  auto [of_plain, sgd] = plain.prepare(other, torch::optim::SGD(other->parameters(), 1.0));
  plain.backward(of_plain(1.0).sum());
  sgd.step();
  CHECK_FALSE(sgd.skip_flag().has_value());
}

TEST_CASE("clipping unscales first, once, and so does unscale_gradients()") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  const auto step = [&, &optimizer = optimizer, &model = model](const auto& between) {
    optimizer.zero_grad();
    net->w.detach().zero_();
    accelerator.backward(model(8.0).sum());
    between();
    optimizer.step();
    return value(net->w);
  };
  CHECK(step([&, &model = model] { CHECK(value(accelerator.clip_grad_norm_(model, 2.0)) == 8.0); }) ==
        doctest::Approx(-2.0));
  CHECK(step([&, &model = model] {
          accelerator.clip_grad_norm_(model, 4.0);
          CHECK(value(accelerator.clip_grad_norm_(model, 2.0)) == doctest::Approx(4.0));
        }) == doctest::Approx(-2.0));
  CHECK(step([&, &model = model] { accelerator.clip_grad_value_(model, 3.0); }) == -3.0);
  CHECK(step([&, &optimizer = optimizer] {
          accelerator.unscale_gradients();
          accelerator.unscale_gradients(optimizer);
          CHECK(value(net->w.grad()) == 8.0);
        }) == -8.0);
}

TEST_CASE("a step is skipped for inf, although clipping turned it into NaN") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  accelerator.backward(model(kInf).sum());
  accelerator.clip_grad_norm_(model, 1.0);
  optimizer.step();
  CHECK(optimizer.step_was_skipped());
  CHECK(value(net->w) == 0.0);
}

TEST_CASE("a gradient that two optimizers share is unscaled once") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, one, two] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0), torch::optim::SGD(net->parameters(), 1.0));
  accelerator.backward(model(1.0).sum());
  one.step();
  CHECK_THROWS_WITH(two.step(),
                    doctest::Contains("optimizer.step: optimizer and optimizer_1 have a parameter in common, "
                                      "and the first has unscaled its gradient, which the other would do "
                                      "again; with mixed_precision fp16 give every parameter to one "
                                      "optimizer, or use bf16"));
  two.zero_grad();
  accelerator.backward(model(1.0).sum());
  two.step();  // alternate steps are allowed
  CHECK(value(net->w) == -2.0);
}

TEST_CASE("the scale is updated once per iteration, however many optimizers step") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  accelerator.backward((a(kInf) + b(kInf)).sum());
  of_a.step();
  CHECK(accelerator.loss_scale() == 1024.0);
  of_b.step();
  CHECK(accelerator.loss_scale() == 512.0);
  of_a.zero_grad();
  of_b.zero_grad();

  // With inf in the gradients of one model, only its step is skipped.
  accelerator.backward((a(1.0) + b(kInf)).sum());
  of_a.step();
  of_b.step();
  CHECK_FALSE(of_a.step_was_skipped());
  CHECK(of_b.step_was_skipped());
  CHECK(accelerator.optimizer_step_was_skipped());
  CHECK(value(first->w) == -1.0);
  CHECK(accelerator.loss_scale() == 256.0);
  of_a.zero_grad();
  of_b.zero_grad();
}

TEST_CASE("alternating backwards and steps, as of a GAN, are separate iterations; zeroed gradients do not block") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  for (int round = 0; round < 2; ++round) {
    of_a.zero_grad();
    accelerator.backward(a(1.0).sum());
    of_a.step();
    of_b.zero_grad();
    accelerator.backward((a(1.0) + b(2.0)).sum());  // reaches a, which drops it
    of_b.step();
  }
  CHECK(value(first->w) == -2.0);
  CHECK(value(second->w) == -4.0);
  CHECK(accelerator.scaler_state().growth_tracker == 3);  // a's gradients of the last round are pending
  of_a.zero_grad();
  CHECK(accelerator.scaler_state().growth_tracker == 4);
}

TEST_CASE("gradients that one optimizer keeps do not block the scale; two scales in them skip its step") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  const auto round = [&, &a = a, &b = b, &of_a = of_a](double x) {
    accelerator.backward((a(x) + b(1.0)).sum());
    of_a.step();
    of_a.zero_grad();
  };
  round(1.0);
  round(1.0);  // gradients of the same scale accumulate
  of_b.step();
  of_b.zero_grad();
  CHECK(value(second->w) == -2.0);
  round(kInf);
  round(1.0);  // the round repeats: the scale backs off although b is pending
  CHECK(accelerator.loss_scale() == 512.0);
  round(1.0);
  of_b.step();
  CHECK(of_b.step_was_skipped());
  CHECK(value(second->w) == -2.0);
  CHECK(value(first->w) == -4.0);
}

TEST_CASE("unscaled gradients are scaled again if a backward adds to them") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  for (int round = 0; round < 3; ++round) {
    accelerator.backward((a(1.0) + b(1.0)).sum());
    accelerator.unscale_gradients();
    CHECK(value(second->w.grad()) == round + 1);
    of_a.step();
    of_a.zero_grad();
  }
  of_b.step();
  CHECK_FALSE(of_b.step_was_skipped());
  CHECK(value(first->w) == -3.0);
  CHECK(value(second->w) == -3.0);
}

TEST_CASE("unscaled gradients stay unscaled, also if a backward reaches another optimizer's parameters") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  accelerator.backward(b(4.0).sum());
  accelerator.unscale_gradients();
  accelerator.backward(a(1.0).sum());
  CHECK(value(second->w.grad()) == 4.0);
  torch::nn::utils::clip_grad_norm_(second->parameters(), 2.0);
  of_b.step();
  CHECK(value(second->w) == doctest::Approx(-2.0));
  of_a.step();
  CHECK(value(first->w) == -1.0);
}

TEST_CASE("an overflow that clipping by value hides is still detected after the next backward") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  accelerator.backward(model(kInf).sum());
  accelerator.clip_grad_value_(model, 1.0);
  accelerator.backward(model(1.0).sum());
  optimizer.step();
  CHECK(optimizer.step_was_skipped());
  CHECK(value(net->w) == 0.0);
  optimizer.zero_grad();
  CHECK(accelerator.loss_scale() == 512.0);
}

TEST_CASE("gradients that are not zeroed after a step accumulate as without fp16") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(1.0).sum());
    optimizer.step();
  }
  CHECK(value(net->w) == -6.0);  // 1 + 2 + 3
}

TEST_CASE("gradients of a plain backward() count as without fp16 if accelerator.backward() follows") {
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  b(1.0).sum().backward();
  accelerator.backward(a(1.0).sum());  // does not reach b
  of_a.step();
  of_b.step();
  CHECK(value(first->w) == -1.0);
  CHECK(value(second->w) == -1.0);
  of_a.zero_grad();
  of_b.zero_grad();
  a(2.0).sum().backward();
  accelerator.backward(a(3.0).sum());  // adds to them
  of_a.step();
  CHECK(value(first->w) == -6.0);
}

TEST_CASE("a plateau schedule receives a metric also after a skipped step") {
  Accelerator accelerator(fp16());
  OneFloat net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto plateau = accelerator.prepare(accelerate::optim::ReduceLROnPlateau(sgd, {.factor = 0.5, .patience = 0}));
  plateau.step(1.0);
  accelerator.backward(model(kInf).sum());
  optimizer.step();
  plateau.step(2.0);
  CHECK(optimizer.step_was_skipped());
  CHECK(sgd.param_groups()[0].options().get_lr() == 0.5);
}

TEST_CASE("unscaled gradients that the module drops do not affect the next backward") {
  for (const double dropped : {1.0, kInf}) {
    CAPTURE(dropped);
    Accelerator accelerator(fp16());
    OneFloat net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
    accelerator.backward(model(dropped).sum());
    CHECK(value(accelerator.clip_grad_norm_(model, 100.0)) == dropped);
    net->zero_grad();
    accelerator.backward(model(2.0).sum());
    CHECK(value(accelerator.clip_grad_norm_(model, 100.0)) == 2.0);
    optimizer.step();
    CHECK_FALSE(optimizer.step_was_skipped());
    CHECK(value(net->w) == -2.0);
  }
}

TEST_CASE("scale and gradients do not change within a window; the reported norm is unscaled") {
  auto options = fp16();
  options.gradient_accumulation_steps = 2;
  Accelerator accelerator(options);
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  Values norms;
  for (const double x : {2.0, 4.0, kInf, 1.0, 6.0, 8.0}) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(x).sum());
    norms.push_back(value(accelerator.clip_grad_norm_(model, 100.0)));
    optimizer.step();
    optimizer.zero_grad();
  }
  CHECK(norms[0] == 1.0);
  CHECK(norms[1] == 3.0);
  CHECK(norms[4] == 3.0);
  CHECK(norms[5] == 7.0);
  CHECK(value(net->w) == doctest::Approx(-10.0));
  CHECK(accelerator.loss_scale() == 512.0);
}

TEST_CASE("sums over tokens are scaled like means and divided by the window's count") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    auto options = fp16();
    options.gradient_accumulation_steps = 2;
    on_ranks(
        ranks,
        [](Accelerator& accelerator) {
          OneFloat net;
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
          const auto window_of = [&, &model = model, &optimizer = optimizer](double one_token, double three_tokens) {
            for (const auto& [sum, tokens] : {std::pair{one_token, int64_t{1}}, std::pair{three_tokens, int64_t{3}}}) {
              auto window = accelerator.accumulate(model);
              accelerator.backward(model(sum).sum(), {.tokens = tokens});
              const auto norm = accelerator.clip_grad_norm_(model, 100.0);
              if (accelerator.sync_gradients() && std::isfinite(sum)) CHECK(value(norm) == doctest::Approx(2.0));
              optimizer.step();
              optimizer.zero_grad();
            }
          };
          window_of(2.0, 6.0);
          CHECK(value(net->w) == doctest::Approx(-2.0));
          window_of(2.0, kInf);
          CHECK(optimizer.step_was_skipped());
          CHECK(accelerator.loss_scale() == 512.0);
          window_of(2.0, 6.0);
          CHECK(value(net->w) == doctest::Approx(-4.0));
        },
        options);
  }
}

TEST_CASE("sparse gradients are unscaled, and skipped if they overflow") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    on_ranks(
        ranks,
        [](Accelerator& accelerator) {
          torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
          auto [model, optimizer] = accelerator.prepare(table, torch::optim::SGD(table->parameters(), 1.0));
          const auto rows = torch::tensor({1, 3, 1}, torch::kLong);
          const auto before = table->weight.detach().clone();
          for (const double factor : {1.0, kInf, 1.0}) {
            accelerator.backward(model(rows).sum() * factor);
            optimizer.step();
            CHECK(optimizer.step_was_skipped() == std::isinf(factor));
            optimizer.zero_grad();
          }
          const auto moved = torch::tensor({{0.0F, 0.0F}, {4.0F, 4.0F}, {0.0F, 0.0F}, {2.0F, 2.0F}});
          CHECK(torch::allclose(before - table->weight.detach(), moved, 0, 1e-5));
          CHECK(accelerator.loss_scale() == 512.0);
        },
        fp16());
  }
}

TEST_CASE("inf on one rank skips the step of all ranks") {
  for (const bool local : {false, true}) {
    CAPTURE(local);
    on_ranks(
        2,
        [local](Accelerator& accelerator) {
          OneFloat net;
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
          const auto step = [&, &model = model, &optimizer = optimizer](double x) {
            accelerator.backward(model(x).sum());
            optimizer.step();
            optimizer.zero_grad();
          };
          const auto run = [&, &optimizer = optimizer] {
            step(1.0);
            step(accelerator.is_main_process() ? 1.0 : kInf);
            CHECK(optimizer.step_was_skipped());
            CHECK(accelerator.loss_scale() == 512.0);
          };
          if (local) {
            const auto steps_alone = accelerator.local_sgd(model, 8);
            run();
          } else {
            run();
          }
          CHECK(value(net->w) == -1.0);
        },
        fp16());
  }
}

TEST_CASE("local SGD: a rank without a gradient or backward follows the decision of the others") {
  for (const bool calls_backward : {true, false}) {
    CAPTURE(calls_backward);
    on_ranks(
        2,
        [calls_backward](Accelerator& accelerator) {
          OneFloat net;
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
          const std::array<std::optional<double>, 4> of_first{1.0, 2.0, kInf, 1.0}, of_second{1.0, {}, {}, 1.0};
          std::vector<bool> skipped;
          {
            const auto steps_alone = accelerator.local_sgd(model, 8);
            for (const auto& x : accelerator.is_main_process() ? of_first : of_second) {
              if (x) accelerator.backward(model(*x).sum());
              if (!x && calls_backward) accelerator.backward(torch::ones({1}, torch::requires_grad()).sum());
              accelerator.clip_grad_norm_(model, 100.0);
              optimizer.step();
              skipped.push_back(optimizer.step_was_skipped());
              optimizer.zero_grad();
            }
            CHECK(value(net->w) == (accelerator.is_main_process() ? -4.0 : -2.0));
          }
          CHECK(value(net->w) == -3.0);
          CHECK(skipped == std::vector<bool>{false, false, true, false});
          CHECK(accelerator.loss_scale() == 512.0);
          CHECK(accelerator.scaler_state().growth_tracker == 1);
        },
        fp16());
  }
}

TEST_CASE("local SGD with two optimizers updates the scale once per round, for any loss") {
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        OneFloat first, second;
        auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                      torch::optim::SGD(second->parameters(), 1.0));
        const auto a_alone = accelerator.local_sgd(a, 8), b_alone = accelerator.local_sgd(b, 8);
        for (int iteration = 0; iteration < 4; ++iteration) {
          const bool reaches_b = accelerator.is_main_process() || iteration == 0;
          const bool reaches_a = accelerator.is_main_process() || iteration < 3;
          if (reaches_b) {
            accelerator.backward((a(1.0) + b(iteration == 2 ? kInf : 1.0)).sum());
          } else if (reaches_a) {
            accelerator.backward(a(1.0).sum());
          }
          of_a.step();
          of_b.step();
          CHECK_FALSE(of_a.step_was_skipped());
          CHECK(of_b.step_was_skipped() == (iteration == 2));
          CHECK(accelerator.loss_scale() == (iteration < 2 ? 1024.0 : 512.0));
          CHECK(accelerator.scaler_state().growth_tracker == (iteration < 2 ? iteration + 1 : iteration - 2));
          of_a.zero_grad();
          of_b.zero_grad();
        }
        CHECK(value(first->w) == (accelerator.is_main_process() ? -4.0 : -3.0));
        CHECK(value(second->w) == (accelerator.is_main_process() ? -3.0 : -1.0));
      },
      fp16());
}

TEST_CASE("local SGD of a GAN unscales an optimizer as soon as it has gradients") {
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        OneFloat first, second;
        auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                      torch::optim::SGD(second->parameters(), 1.0));
        const auto a_alone = accelerator.local_sgd(a, 8), b_alone = accelerator.local_sgd(b, 8);
        for (int round = 0; round < 2; ++round) {
          of_a.zero_grad();
          accelerator.backward(a(1.0).sum());
          accelerator.unscale_gradients();
          of_a.step();
          accelerator.backward(b(2.0).sum());
          accelerator.unscale_gradients();
          of_b.step();
          of_b.zero_grad();
        }
        CHECK(value(first->w) == -2.0);
        CHECK(value(second->w) == -4.0);
      },
      fp16());
}

TEST_CASE("a rank with fewer batches ends with the same scale as the others") {
  on_ranks(
      2,
      [](Accelerator& accelerator) {
        OneFloat net;
        auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
        {
          auto join = accelerator.join_uneven_inputs(model);
          for (int64_t step = 0; step <= accelerator.process_index(); ++step) {
            accelerator.backward(model(step == 0 ? 1.0 : kInf).sum());
            optimizer.step();
            optimizer.zero_grad();
          }
        }
        CHECK(accelerator.loss_scale() == 512.0);
        CHECK(value(net->w) == -1.0);
      },
      fp16());
}

TEST_CASE("a schedule ignores a skipped step unless step_scheduler_with_optimizer is false") {
  for (const bool with_optimizer : {true, false}) {
    auto options = fp16();
    options.step_scheduler_with_optimizer = with_optimizer;
    Accelerator accelerator(options);
    OneFloat net;
    torch::optim::SGD sgd(net->parameters(), 1.0);
    accelerate::optim::LambdaLR linear(sgd, [](int64_t steps) { return 1.0 - static_cast<double>(steps) / 10.0; });
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, linear);
    for (const double x : {1.0, kInf, 1.0}) {
      accelerator.backward(model(x).sum());
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    CHECK(scheduler.get_last_lr().at(0) == doctest::Approx(with_optimizer ? 0.8 : 0.7));
  }
}

TEST_CASE("the loss scale is saved and loaded") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  accelerator.backward(model(1.0).sum());
  optimizer.step();
  const auto saved = accelerator.scaler_state();
  CHECK(saved == accelerate::precision::ScalerState{.scale = 1024.0, .growth_tracker = 1});
  Accelerator other(fp16(4.0));
  other.load_scaler_state(saved);
  CHECK(other.scaler_state() == saved);
  Accelerator plain({.cpu = true, .mixed_precision = Precision::bf16});
  CHECK(plain.loss_scale() == 1.0);
  CHECK_FALSE(plain.optimizer_step_was_skipped());
  CHECK_THROWS_WITH((void)plain.scaler_state(),
                    doctest::Contains("scaler_state: mixed_precision is bf16, only fp16 has a loss scale"));
}

TEST_CASE("a loaded scale is not affected by the overflows of the previous iteration") {
  const testing::TemporaryFolder folder;
  Accelerator accelerator(fp16());
  OneFloat first, second;
  auto [a, b, of_a, of_b] = accelerator.prepare(first, second, torch::optim::SGD(first->parameters(), 1.0),
                                                torch::optim::SGD(second->parameters(), 1.0));
  accelerator.save_state(folder.path / "c");
  for (const double x : {1.0, kInf}) {
    accelerator.backward(a(x).sum() + b(1.0).sum());
    of_a.step();  // and an exception prevents the second step
    accelerator.load_state(folder.path / "c");
    CHECK(accelerator.scaler_state().scale == 1024);
    CHECK(accelerator.scaler_state().growth_tracker == 0);
    CHECK_FALSE(accelerator.optimizer_step_was_skipped());
    CHECK_FALSE(of_a.skip_flag().has_value());
    of_a.zero_grad();
    of_b.zero_grad();
    CHECK(accelerator.scaler_state().growth_tracker == 0);
  }
}

TEST_CASE("a step that throws at the minimum scale does not count") {
  const testing::TemporaryFolder folder;
  auto options = fp16(2.0);
  options.grad_scaler.min_scale = 1.5;
  Accelerator accelerator(options);
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  for (int i = 0; i < 3; ++i) {
    accelerator.backward(model(1.0).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.backward(model(kInf).sum());
  CHECK_THROWS_AS(optimizer.step(), accelerate::Error);
  optimizer.zero_grad();
  accelerator.save_state(folder.path / "c");
  CHECK(accelerator.load_state(folder.path / "c").step == 3);
}

TEST_CASE("the minimum scale is an error with both values") {
  auto options = fp16(8.0);
  options.grad_scaler.min_scale = 2.0;
  Accelerator accelerator(options);
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    accelerator.backward(model(kInf).sum());
    optimizer.step();
  };
  step();
  step();
  CHECK_THROWS_WITH(
      step(),
      doctest::Contains("optimizer.step: the loss scale is 2, inf or NaN in the gradients would bring it to 1, "
                        "below its floor min_scale (2), after 3 skipped steps in a row: smaller scales do not "
                        "help; look for NaN in loss, data and parameters (stop_at_nan_loss), lower the learning "
                        "rate, or use bf16"));
}

TEST_CASE("stop_at_nan_loss throws for a NaN loss with its step and rank; otherwise the scaler skips the step") {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    on_ranks(
        2,
        [](Accelerator& accelerator) {
          OneFloat net;
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
          accelerator.backward(model(1.0).sum());
          optimizer.step();
          optimizer.zero_grad();
          if (accelerator.is_main_process()) return;  // it would wait for the other rank's gradients
          const auto text = fmt::format(
              "[rank 1 of 2, {}] backward: the loss of step 2 (call 2 of backward()) is nan, must be a number; look at "
              "this batch and at the learning rate",
              accelerator.place().host);
          CHECK_THROWS_WITH(accelerator.backward(model(std::nan("")).sum()), text.c_str());
        },
        {.cpu = true, .mixed_precision = precision, .stop_at_nan_loss = true});
  }
}

TEST_CASE("gradients without accelerator.backward() are refused, in an optimizer's closure too") {
  Accelerator accelerator(fp16());
  OneFloat net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  model(1.0).sum().backward();
  CHECK_THROWS_WITH(
      optimizer.step(),
      doctest::Contains("optimizer.step: accelerator.backward() made none of this optimizer's gradients since its last "
                        "step or zero_grad(); with mixed_precision fp16 the loss is scaled there: call it instead of "
                        "loss.backward()"));
  auto lbfgs = accelerator.prepare(torch::optim::LBFGS(net->parameters()));
  CHECK_THROWS_WITH(
      lbfgs.step([&, &model = model] { return model(1.0).sum(); }),
      doctest::Contains("optimizer.step: this optimizer calls its closure itself, maybe several times, "
                        "which loss scaling cannot follow; step without a closure, or use bf16 instead of "
                        "fp16"));
  optimizer.zero_grad();
  optimizer.step([&, &model = model, &optimizer = optimizer] {  // the prepared optimizer calls it once
    optimizer.zero_grad();
    auto loss = model(1.0).sum();
    accelerator.backward(loss);
    return loss;
  });
  CHECK(value(net->w) == -1.0);
  auto some = torch::nn::Linear(2, 2)->parameters();
  for (auto& parameter : some) parameter.mutable_grad() = torch::ones_like(parameter);
  some.push_back(net->w);
  CHECK_THROWS_WITH(accelerator.clip_grad_norm_(some, 1.0),
                    doctest::Contains("clip_grad: 2 of the 3 parameters belong to no prepared optimizer, so their "
                                      "gradients keep the loss scale of fp16 beside the others'; clip those of the "
                                      "optimizer alone"));
  const auto strangers = torch::nn::Linear(2, 2)->parameters();
  CHECK_THROWS_WITH(accelerator.clip_grad_norm_(strangers, 1.0),
                    doctest::Contains("clip_grad: none of the 2 parameters belongs to a prepared optimizer, so their "
                                      "gradients keep the loss scale of fp16; give the optimizer to prepare()"));
}

TEST_CASE("invalid scaler options are refused for every precision") {
  CHECK_THROWS_WITH(Accelerator({.cpu = true, .grad_scaler = {.growth_factor = 0.5}}),
                    doctest::Contains("grad_scaler: growth_factor is 0.5, must be a finite number above 1"));
}
