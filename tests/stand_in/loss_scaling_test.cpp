// SPDX-License-Identifier: Apache-2.0
// Mixed precision on an asynchronous device: the flags of fp16 are read after they have arrived.
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;
using stand_in::Tensors;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Uses only operators with equal autocast lists on every device: the CPU's lists differ in softmax, losses and norms.
struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    const auto product = hidden(images.flatten(1));
    seen = product.scalar_type();
    return last(torch::relu(product));
  }
  at::ScalarType seen = at::kFloat;
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(36, 16));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(16, 5));
};
TORCH_MODULE(Mlp);

/// Number of host waits for this rank's device.
int64_t waits_of(const Accelerator& accelerator) {
  return accelerator.device().is_cpu() ? 0 : stand_in::host_waits(accelerator.device().index());
}

/// An epoch of 8 steps, two of them with inf in the data.
/// \returns parameters; scale, rate of the schedule, and whether the last step was skipped.
template <typename Optimizer, typename Options>
auto trains_over_inf(const Options& of_optimizer, bool last_too) {
  return [=](Accelerator& accelerator) -> Tensors {
    stand_in::Job<Mlp, Optimizer> job(accelerator, of_optimizer, 24 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::LambdaLR falling(job.stock, [](int64_t steps) { return 1.0 / static_cast<double>(1 + steps); });
    auto scheduler = accelerator.prepare(falling);
    int64_t step = 0;
    for (auto& [images, labels] : loader) {
      ++step;
      const bool overflows = step == 3 || step == 4 || (last_too && step == 8);
      optimizer.zero_grad();
      accelerator.backward(stand_in::loss_of(model(overflows ? images * kInf : images), labels));
      if (step % 2 == 0) accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
      scheduler.step();
    }
    CHECK(step == 8);
    const auto before = waits_of(accelerator);
    const bool skipped = optimizer.step_was_skipped();
    const auto after = waits_of(accelerator);
    CHECK(skipped == last_too);
    CHECK(after - before <= 1);  // for the last flag, if it has not arrived
    CHECK(accelerator.optimizer_step_was_skipped() == skipped);
    CHECK(waits_of(accelerator) == after);
    Tensors all = model->parameters();
    all.push_back(torch::tensor({accelerator.loss_scale(), scheduler.get_last_lr().at(0), skipped ? 1.0 : 0.0}));
    return all;
  };
}

/// An epoch of 8 steps with one move of a schedule each.
/// \param make_after  Maps (accelerator, stock optimizer, prepared optimizer) to a function that is called after each
///                    move with a list of rates.
/// \returns parameters; that list and the final rate.
template <typename MakeAfter>
auto trains_with_schedule(const MakeAfter& make_after) {
  return [=](Accelerator& accelerator) -> Tensors {
    stand_in::Job<Mlp> job(accelerator, torch::optim::SGDOptions(0.1), 24 * accelerator.num_processes());
    auto& [model, optimizer, loader] = job.prepared;
    accelerate::optim::LambdaLR falling(job.stock, [](int64_t steps) { return 1.0 / static_cast<double>(1 + steps); });
    auto scheduler = accelerator.prepare(falling);
    const auto after = make_after(accelerator, job.stock, optimizer);
    std::vector<double> rates;
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      accelerator.backward(stand_in::loss_of(model(images), labels));
      optimizer.step();
      scheduler.step();
      after(rates);
    }
    rates.push_back(scheduler.get_last_lr().at(0));
    Tensors all = model->parameters();
    all.push_back(torch::tensor(rates, torch::kDouble));
    return all;
  };
}

template <typename Optimizer, typename Options>
void scaling_waits_for_nothing(const Options& of_optimizer, const AcceleratorOptions& options) {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    stand_in::at_every_pace(
        [&] {
          stand_in::on_devices(
              ranks,
              [&](Accelerator& accelerator) {
                stand_in::Job<Mlp, Optimizer> job(accelerator, of_optimizer, 24 * accelerator.num_processes());
                auto& [model, optimizer, loader] = job.prepared;
                CHECK(stand_in::waits_when_steady(
                          accelerator, loader, [&, &model = model, &optimizer = optimizer](auto& batch) {
                            auto window = accelerator.accumulate(model);
                            accelerator.backward(stand_in::loss_of(model(batch.data), batch.target));
                            accelerator.clip_grad_norm_(model, 1.0);
                            optimizer.step();
                            optimizer.zero_grad();
                          }) == 0);
              },
              options);
        },
        500);
  }
}

}  // namespace

TEST_CASE("autocast uses the device: products in bf16 and fp16, outputs in float32, with the CPU's bits") {
  for (const auto precision : {Precision::bf16, Precision::fp16}) {
    stand_in::same_as_on_cpu(
        [&](Accelerator& accelerator) -> Tensors {
          auto net = stand_in::made_equal([] { return Mlp(); });
          auto model = accelerator.prepare(net);
          const auto images = stand_in::small_data(4).first.to(accelerator.device());
          const torch::NoGradGuard no_grad;
          const auto logits = model(images);
          CHECK((logits.scalar_type() == at::kFloat));
          CHECK((net->seen == (precision == Precision::bf16 ? at::kBFloat16 : at::kHalf)));
          {
            const auto off = accelerator.autocast({.enabled = false});
            net->forward(images);
            CHECK((net->seen == at::kFloat));
          }
          return {logits};
        },
        stand_in::with_precision(precision), {1});
  }
}

TEST_CASE("fp16 skips overflows on the device with the CPU's bits: parameters, scale and the schedule's rate") {
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  stand_in::same_as_on_cpu(trains_over_inf<AdamW>(AdamWOptions(1e-2), false),
                           stand_in::with_precision(Precision::fp16));
  stand_in::same_as_on_cpu(trains_over_inf<SGD>(SGDOptions(0.1).momentum(0.9), true),
                           stand_in::with_precision(Precision::fp16));
}

TEST_CASE("the skip flag costs one wait if the host is ahead of the device, and none if it is read again") {
  stand_in::on_devices(
      1,
      [](Accelerator& accelerator) {
        auto net = stand_in::made_equal([] { return Mlp(); });
        auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
        const auto batch = stand_in::small_data(3);
        const auto images = batch.first.to(accelerator.device()), labels = batch.second.to(accelerator.device());
        for (const double factor : {kInf, 1.0}) {
          stand_in::set_delay(5000, stand_in::Slow::main);  // a step of many jobs takes more than 0.1 s
          optimizer.zero_grad();
          accelerator.backward(stand_in::loss_of(model(images * factor), labels));
          optimizer.step();
          const auto before = waits_of(accelerator);
          CHECK(optimizer.step_was_skipped() == std::isinf(factor));
          const auto waits = waits_of(accelerator) - before;
          CHECK(waits <= 1);
          if (!stand_in::on_gpu()) CHECK(waits == 1);  // on a GPU the flag may already have arrived
          CHECK(accelerator.optimizer_step_was_skipped() == std::isinf(factor));
          CHECK(waits_of(accelerator) - before == waits);
          stand_in::set_delay(0);
        }
      },
      stand_in::with_precision(Precision::fp16));
}

TEST_CASE(
    "a loss scale at its minimum throws after the flag arrives, in the same call on all ranks; training may continue") {
  auto options = stand_in::with_precision(Precision::fp16);
  options.grad_scaler.init_scale = 4;
  options.grad_scaler.min_scale = 2;
  const char* const at_the_floor =
      "optimizer.step: the loss scale is 2, inf or NaN in the gradients would bring it to 1, below its floor min_scale "
      "(2), after 2 skipped steps in a row: smaller scales do not help; look for NaN in loss, data and parameters "
      "(stop_at_nan_loss), lower the learning rate, or use bf16";
  for (const int64_t ranks : {1, 2}) {
    for (const bool requested : {true, false}) {
      stand_in::at_every_pace(
          [&] {
            stand_in::on_devices(
                ranks,
                [&](Accelerator& accelerator) {
                  CAPTURE(ranks);
                  CAPTURE(requested);
                  auto net = stand_in::made_equal([] { return Mlp(); });
                  torch::optim::SGD sgd(net->parameters(), 0.1);
                  accelerate::optim::ConstantLR constant(sgd);
                  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, constant);
                  const auto batch = stand_in::small_data(3);
                  const auto images = batch.first.to(accelerator.device());
                  const auto labels = batch.second.to(accelerator.device());
                  const auto step = [&, &model = model, &optimizer = optimizer](double factor) {
                    optimizer.zero_grad();
                    const double mine = accelerator.is_last_process() ? factor : 1;
                    accelerator.backward(stand_in::loss_of(model(images * mine), labels));
                    optimizer.step();
                  };
                  step(kInf);
                  step(kInf);  // at the minimum, which the host does not know yet
                  if (requested) {
                    CHECK_THROWS_WITH((void)optimizer.step_was_skipped(), doctest::Contains(at_the_floor));
                  } else {
                    scheduler.step();  // deferred until the flag of this step is known
                    CHECK_THROWS_WITH(step(1), doctest::Contains(at_the_floor));
                  }
                  const auto bias = [&] { return stand_in::to_cpu(net->parameters()).back(); };
                  const auto before = bias();
                  step(1);
                  CHECK_FALSE(optimizer.step_was_skipped());
                  CHECK(accelerator.loss_scale() == 1);
                  CHECK_FALSE(at::equal(bias(), before));
                },
                options);
          },
          500);
    }
  }
}

TEST_CASE("an optimizer without a fused step waits for its flag and has correct results") {
  struct OwnStep : torch::optim::SGD {
    using SGD::SGD;
  };
  stand_in::same_as_on_cpu(trains_over_inf<OwnStep>(torch::optim::SGDOptions(0.1), true),
                           stand_in::with_precision(Precision::fp16), {1});
}

TEST_CASE("a steady fp16 step does not wait for the device: SGD, AdamW, windows, clipping, on 1 and 2 ranks") {
  auto options = stand_in::with_precision(Precision::fp16);
  scaling_waits_for_nothing<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), options);
  options.gradient_accumulation_steps = 2;
  scaling_waits_for_nothing<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3), options);
}

TEST_CASE("an average ignores steps that the device skips, without a wait of the host") {
  stand_in::at_every_pace(
      [] {
        stand_in::on_devices(
            1,
            [](Accelerator& accelerator) {
              stand_in::Job<Mlp> job(accelerator, torch::optim::SGDOptions(0.1));
              auto& [model, optimizer, loader] = job.prepared;
              accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.5});
              int64_t step = 0;
              CHECK(stand_in::waits_when_steady(
                        accelerator, loader, [&, &model = model, &optimizer = optimizer](auto& batch) {
                          const double scale = ++step % 3 == 0 ? kInf : 1;
                          optimizer.zero_grad();
                          accelerator.backward(stand_in::loss_of(model(batch.data * scale), batch.target));
                          optimizer.step();
                          ema.update(optimizer.skip_flag());
                        }) == 0);
              CHECK(step == 8);
              CHECK(ema.updates() == 6);
            },
            stand_in::with_precision(Precision::fp16));
      },
      500);
}

TEST_CASE("a bypassed SGD step, which has no version counter, is detected on the device without waits") {
  stand_in::on_devices(
      1,
      [](Accelerator& accelerator) {
        Mlp net;
        auto model = accelerator.prepare(net);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        const auto [images, labels] = stand_in::small_data(4);
        const auto x = images.to(accelerator.device()), y = labels.to(accelerator.device());
        const auto step = [&] {
          net->zero_grad();
          accelerator.backward(stand_in::loss_of(model(x), y));
          sgd.step();
        };
        step();
        CHECK_THROWS_WITH(step(), doctest::Contains("backward: parameter hidden.weight changed while its gradient "
                                                    "carried the loss scale of fp16 (1024)"));
      },
      stand_in::with_precision(Precision::fp16));
}

TEST_CASE("local SGD in fp16: ranks with and without gradients skip together, with the CPU's bits") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        stand_in::Job<Mlp> job(accelerator, torch::optim::SGDOptions(0.1));
        auto& [model, optimizer, loader] = job.prepared;
        auto local = accelerator.local_sgd(model, 3);
        int64_t step = 0;
        for (auto& [images, labels] : loader) {
          ++step;
          const bool without = step == 2 && !accelerator.is_main_process();
          const bool overflows = step == 4 && accelerator.is_main_process();
          if (!without) {
            accelerator.backward(stand_in::loss_of(model(overflows ? images * kInf : images), labels));
            accelerator.clip_grad_norm_(model, 0.5);
          }
          optimizer.step();
          CHECK(optimizer.step_was_skipped() == (step == 4));
          local.step();
          optimizer.zero_grad();
        }
        CHECK(step >= 4);
        local.finish();
        Tensors all = model->parameters();
        all.push_back(torch::tensor({accelerator.loss_scale()}));
        return all;
      },
      stand_in::with_precision(Precision::fp16));
}

TEST_CASE("a rate that is read or set through the optimizer is the schedule's current rate, as on the CPU") {
  stand_in::same_as_on_cpu(trains_with_schedule([](Accelerator&, auto&, auto& optimizer) {
                             return [&optimizer](std::vector<double>& rates) {
                               rates.push_back(optimizer.param_groups()[0].options().get_lr());
                               if (rates.size() % 2 == 0) optimizer->param_groups()[0].options().set_lr(0.05);
                             };
                           }),
                           stand_in::with_precision(Precision::fp16));
}

TEST_CASE("a plateau continues from the rate of another schedule that moves for the same step, as on the CPU") {
  stand_in::same_as_on_cpu(
      trains_with_schedule([](Accelerator& accelerator, auto& stock, auto&) {
        auto plateau = accelerator.prepare(accelerate::optim::ReduceLROnPlateau(stock, {.factor = 0.5, .patience = 0}));
        return [plateau](std::vector<double>&) { plateau.step(1.0); };
      }),
      stand_in::with_precision(Precision::fp16));
}

TEST_CASE("a stock step after skipped fused steps has the CPU's step count") {
  stand_in::same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        auto net = stand_in::made_equal([] { return Mlp(); });
        // not part of a model, so not reduced
        const at::Tensor own = torch::ones({4, 3}, accelerator.device()).requires_grad_();
        auto parameters = net->parameters();
        parameters.push_back(own);
        auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(parameters, 1e-2));
        const auto batch = stand_in::small_data(3);
        const auto images = batch.first.to(accelerator.device()), labels = batch.second.to(accelerator.device());
        for (int64_t step = 0; step < 6; ++step) {
          optimizer.zero_grad();
          accelerator.backward(stand_in::loss_of(model(step < 2 ? images * kInf : images), labels));
          const auto gradient = torch::full({3, 4}, 65536.0, accelerator.device());
          // the kernel supports the last layout
          own.mutable_grad() = step % 2 == 0 ? gradient.t() : gradient.t().contiguous();
          optimizer.step();
        }
        Tensors all = model->parameters();
        all.push_back(own);
        return all;
      },
      stand_in::with_precision(Precision::fp16), {1});
}

TEST_CASE("a schedule makes a step wait for the previous step's flag, never for its own") {
  stand_in::at_every_pace(
      [] {
        stand_in::on_devices(
            1,
            [](Accelerator& accelerator) {
              stand_in::Job<Mlp> job(accelerator, torch::optim::SGDOptions(0.1));
              auto& [model, optimizer, loader] = job.prepared;
              accelerate::optim::ConstantLR constant(job.stock);
              auto scheduler = accelerator.prepare(constant);
              const auto waits = [&] { return stand_in::host_waits(accelerator.device().index()); };
              int64_t for_the_schedule = 0;
              const int64_t all = stand_in::waits_when_steady(
                  accelerator, loader, [&, &model = model, &optimizer = optimizer](auto& batch) {
                    optimizer.zero_grad();
                    accelerator.backward(stand_in::loss_of(model(batch.data), batch.target));
                    optimizer.step();
                    const auto before = waits();
                    scheduler.step();
                    for_the_schedule += waits() - before;
                  });
              CHECK(for_the_schedule == 0);
              CHECK(all <= 6);  // steps 3 to 8: one wait each if the host is ahead
            },
            stand_in::with_precision(Precision::fp16));
      },
      500);
}
