// SPDX-License-Identifier: Apache-2.0
// Host costs and overlap of a step: counts waits, and checks that jobs are ordered as required and not more.
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using stand_in::Launch;
using stand_in::made_equal;
using stand_in::SmallNet;
using stand_in::waits_when_steady;

namespace {

template <typename Optimizer, typename Options>
void waits_for_nothing(const Options& of_optimizer, const accelerate::AcceleratorOptions& options) {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    stand_in::at_every_pace(
        [&] {
          stand_in::on_devices(
              ranks,
              [&](Accelerator& accelerator) {
                stand_in::Job<SmallNet, Optimizer> job(accelerator, of_optimizer, 24 * accelerator.num_processes());
                auto& [model, optimizer, loader] = job.prepared;
                CHECK(waits_when_steady(accelerator, loader, [&, &model = model, &optimizer = optimizer](auto& batch) {
                        auto window = accelerator.accumulate(model);
                        accelerator.backward(torch::nll_loss(model(batch.data), batch.target));
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

std::vector<Launch> of_device(const std::vector<Launch>& trace, int device) {
  std::vector<Launch> mine;
  for (const auto& each : trace) {
    if (each.device == device) mine.push_back(each);
  }
  return mine;
}

/// The jobs that both ranks launch in the third step, from backward to step().
std::vector<Launch> trace_of_a_step() {
  std::vector<Launch> trace;
  stand_in::on_devices(
      2,
      [&](Accelerator& accelerator) {
        auto net = made_equal([] { return SmallNet(); });
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto data = stand_in::small_loader(18, 3);
        auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);
        int64_t steps = 0;
        for (auto& [images, labels] : loader) {
          optimizer.zero_grad();
          const auto loss = torch::nll_loss(model(images), labels);
          accelerator.wait_for_everyone();
          const bool last = ++steps == 3;
          if (last && accelerator.is_main_process()) stand_in::start_trace();
          accelerator.wait_for_everyone();
          accelerator.backward(loss);
          optimizer.step();
          accelerator.wait_for_everyone();
          if (last && accelerator.is_main_process()) trace = stand_in::take_trace();
          if (last) break;
        }
      },
      stand_in::with_small_buckets());
  return trace;
}

}  // namespace

TEST_CASE("a steady step does not wait for the device: SGD, AdamW, windows, clipping, on 1 and 2 ranks") {
  auto options = stand_in::with_small_buckets();
  waits_for_nothing<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), options);
  options.gradient_accumulation_steps = 2;
  waits_for_nothing<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3), options);
}

TEST_CASE("gather_for_metrics and local SGD's averages block the stream, not the host") {
  stand_in::at_every_pace(
      [] {
        stand_in::on_devices(2, [](Accelerator& accelerator) {
          stand_in::Job<> job(accelerator, torch::optim::SGDOptions(0.1), 47);
          auto& [model, optimizer, loader] = job.prepared;
          auto local = accelerator.local_sgd(model, 2);
          CHECK(waits_when_steady(
                    accelerator, loader, [&, &model = model, &optimizer = optimizer, &local = local](auto& batch) {
                      stand_in::backward_on(accelerator, model, optimizer, batch.data, batch.target);
                      optimizer.step();
                      local.step();
                      const auto seen = accelerator.gather_for_metrics(std::pair(model(batch.data), batch.target));
                      static_cast<void>(accelerator.reduce(seen.first.sum()));
                    }) == 0);
        });
      },
      500);
}

TEST_CASE("a steady step on a foreign loader's batches does not wait for the device") {
  stand_in::at_every_pace(
      [] {
        stand_in::on_devices(2, [](Accelerator& accelerator) {
          auto net = made_equal([] { return SmallNet(); });
          torch::optim::SGD sgd(net->parameters(), 0.1);
          const auto [images, labels] = stand_in::small_data(48);
          std::vector<std::pair<at::Tensor, at::Tensor>> batches;
          for (int64_t i = 0; i < 48; i += 3) batches.emplace_back(images.narrow(0, i, 3), labels.narrow(0, i, 3));
          auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
          CHECK(waits_when_steady(accelerator, loader, [&, &model = model, &optimizer = optimizer](auto& batch) {
                  stand_in::backward_on(accelerator, model, optimizer, batch.first, batch.second);
                  optimizer.step();
                }) == 0);
        });
      },
      500);
}

TEST_CASE("buckets are reduced on a side stream during backward, and the step waits for all of them" *
          stand_in::needs_stand_in()) {
  stand_in::at_every_pace(
      [] {
        const auto trace = trace_of_a_step();
        for (const int device : {0, 1}) {
          CAPTURE(device);
          const auto mine = of_device(trace, device);
          std::vector<Launch> reductions;
          std::optional<Launch> last_of_backward;
          std::optional<Launch> step;
          size_t before_the_last = 0;
          for (const auto& each : mine) {
            if (each.what == "ALLREDUCE") reductions.push_back(each);
            if (each.what == "aten::_fused_sgd_") step = each;
            if (each.what != "aten::convolution_backward") continue;
            last_of_backward = each;
            before_the_last = reductions.size();
          }
          REQUIRE(last_of_backward);
          REQUIRE(step);
          REQUIRE(reductions.size() >= 3);
          CHECK(before_the_last >= 2);  // launched before the last one
          for (size_t i = 0; i < reductions.size(); ++i) {
            CHECK(reductions[i].side);
            CHECK(stand_in::ordered(reductions[i], *step));
            if (i < before_the_last) CHECK_FALSE(stand_in::ordered(reductions[i], *last_of_backward));
          }
        }
      },
      500);
}
