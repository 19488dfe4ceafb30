// SPDX-License-Identifier: Apache-2.0
// Out of memory, and missing ranks.
#include <ATen/DeviceAccelerator.h>

#include <atomic>
#include <thread>

#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using accelerate::Error;
using accelerate::ErrorKind;
using stand_in::made_equal;
using stand_in::on_devices;
using stand_in::SmallNet;
using namespace std::chrono_literals;

namespace {

constexpr size_t kPlenty = size_t{256} << 20;

/// Reduces the devices' memory during its lifetime.
struct Limit {
  explicit Limit(size_t bytes) { set(bytes); }
  ~Limit() { set(kPlenty); }
  static void set(size_t bytes) {
    for (const int device : {0, 1}) stand_in::set_limit(static_cast<c10::DeviceIndex>(device), bytes);
  }
};

/// Sets a flag at the end of its scope, also after an exception, because another rank waits for it.
struct End {
  std::atomic<bool>& flag;
  ~End() { flag = true; }
};

/// Two ranks with a prepared model run `together(optimizer, backward)`; then rank 1 joins no operation until rank 0 has
/// run `alone(accelerator, optimizer, backward)`. Timeouts expire after 6 s.
template <typename JobResult, typename Alone>
void while_rank_1_stays_away(const JobResult& together, const Alone& alone) {
  std::atomic<bool> over = false;
  accelerate::comm::run_threads(
      2,
      [&](const accelerate::comm::Group& group) {
        accelerate::AcceleratorOptions options;
        options.device = "standin";
        Accelerator accelerator(group, options);
        auto net = made_equal([] { return SmallNet(); });
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto [images, labels] = stand_in::small_data(2);
        const auto backward = [&, &model = model, &x = images, &y = labels] {
          accelerator.backward(torch::nll_loss(model(x.to(accelerator.device())), y.to(accelerator.device())));
        };
        together(optimizer, backward);
        if (!accelerator.is_main_process()) {
          while (!over) std::this_thread::sleep_for(5ms);
          return;
        }
        const End at_end{over};
        alone(accelerator, optimizer, backward);
      },
      6s);
  stand_in::detect_races();
}

}  // namespace

TEST_CASE("out of memory is an Error of the device, and training continues with a smaller batch") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    stand_in::at_every_pace(
        [ranks] {
          on_devices(ranks, [](Accelerator& accelerator) {
            auto net = made_equal([] { return SmallNet(); });
            torch::optim::SGD sgd(net->parameters(), 0.1);
            auto [model, optimizer] = accelerator.prepare(net, sgd);
            std::vector<int64_t> tried;
            const auto run = [&, &model = model, &optimizer = optimizer](int64_t size) {
              tried.push_back(size);
              const auto images = torch::ones({size, 1, 6, 6}).to(accelerator.device());
              const auto labels = torch::zeros({size}, at::kLong).to(accelerator.device());
              for (int step = 0; step < 2; ++step) {
                optimizer.zero_grad();
                accelerator.backward(torch::nll_loss(model(images), labels));
                optimizer.step();
              }
            };
            const Limit limit(size_t{6} << 20);
            try {
              run(8192);
              FAIL_CHECK("memory sufficed");
            } catch (const Error& error) {
              CHECK((error.kind() == ErrorKind::device));
              const std::string text = error.what();
              CHECK(text.find("forward: standin:") != std::string::npos);
              CHECK(text.find(" is out of memory: tried to allocate ") != std::string::npos);
              CHECK(text.find("; known tensors: ") != std::string::npos);
              CHECK(text.find(" tensors (parameters ") != std::string::npos);
              CHECK(text.find("), the largest ") != std::string::npos);
              CHECK(text.ends_with("; use a smaller batch, or call find_executable_batch_size()"));
            }
            const int64_t fits = accelerator.find_executable_batch_size(run, 8192);
            CHECK(fits < 8192);
            CHECK(fits == tried.back());
            for (const auto& parameter : model.parameters()) CHECK_FALSE(parameter.isnan().any().item<bool>());
          });
        },
        200);
  }
}

TEST_CASE("out of memory in a step or a forward lists the optimizer state with its parameter's name") {
  on_devices(1, [](Accelerator& accelerator) {
    torch::nn::Linear small(4, 4), large(256, 512);
    torch::optim::AdamW adamw(large->parameters(), 0.1);
    auto [first, model, optimizer] = accelerator.prepare(small, large, adamw);
    const auto x = torch::ones({1, 256}).to(accelerator.device());
    const auto many = torch::ones({4096, 256}).to(accelerator.device());
    const auto text_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "memory sufficed";
    };
    const auto backward = [&, &model = model] { accelerator.backward(model(x).sum()); };
    const std::string parameters =
        "; known tensors: 1.0 MiB in 6 tensors (parameters 514 KiB, gradients 514 KiB), the largest weight of "
        "model_1 [512, 256] Float (512 KiB), "
        "gradient of weight of model_1 [512, 256] Float (512 KiB), ";
    backward();
    std::string message = [&, &optimizer = optimizer] {
      const Limit limit(size_t{5500} << 10);
      return text_of([&] { optimizer.step(); });
    }();
    CAPTURE(message);
    CHECK(message.find("optimizer.step: standin:") != std::string::npos);
    CHECK(message.find(parameters) != std::string::npos);
    optimizer.step();
    optimizer.zero_grad();
    message = [&, &model = model] {
      const Limit limit(size_t{8} << 20);
      return text_of([&] { model(many); });
    }();
    CHECK(message.find(
              "in 8 tensors (parameters 514 KiB, optimizer 1.0 MiB), the largest weight of model_1 [512, 256] "
              "Float (512 KiB), exp_avg of weight of "
              "model_1 [512, 256] Float (512 KiB), exp_avg_sq of weight of model_1 [512, 256] Float (512 KiB); the "
              "rest") != std::string::npos);
  });
}

TEST_CASE("a step after a failed reduction on the device is refused, for any state of the gradients") {
  while_rank_1_stays_away(
      [](auto& optimizer, const auto& backward) {
        backward();
        optimizer.step();
        optimizer.zero_grad();
      },
      [](Accelerator&, auto& optimizer, const auto& backward) {
        backward();
        CHECK_THROWS_AS(at::accelerator::synchronizeDevice(0), c10::DistBackendError);
        CHECK_THROWS_WITH(optimizer.step(), fmt::format("[rank 0 of 2, {}] optimizer.step: an earlier operation on the "
                                                        "device failed: a collective's time was up",
                                                        accelerate::base::host_name())
                                                .c_str());
      });
}

TEST_CASE("a step and the next operation are refused after a failed operation of the user on the device") {
  for (const bool steps : {true, false}) {
    while_rank_1_stays_away(
        [](auto&, const auto& backward) { backward(); },
        [steps](Accelerator& accelerator, auto& optimizer, const auto&) {
          const auto ones = torch::ones({4}, accelerator.device());
          const auto pending = accelerator.group().all_reduce_async(ones);
          CHECK_THROWS_AS(at::accelerator::synchronizeDevice(0), c10::DistBackendError);
          const std::string reason = "an earlier operation on the device failed: a collective's time was up";
          const std::string rank = fmt::format("[rank 0 of 2, {}] ", accelerate::base::host_name());
          if (steps) {
            CHECK_THROWS_WITH(optimizer.step(), (rank + "optimizer.step: " + reason).c_str());
          } else {
            CHECK_THROWS_WITH(
                accelerator.group().all_reduce(ones),
                (rank + "all_reduce: operation 4 ([4] float32 on standin) cannot end: " + reason).c_str());
          }
        });
  }
}

TEST_CASE("a group that breaks on the host aborts pending operations on the device") {
  std::atomic<bool> over = false;
  const auto begun = std::chrono::steady_clock::now();
  on_devices(2, [&](Accelerator& accelerator) {
    if (!accelerator.is_main_process()) {
      while (!over) std::this_thread::sleep_for(5ms);
      return;
    }
    const End at_end{over};
    const auto& group = accelerator.group();
    const auto on_device = group.all_reduce_async(torch::ones({4}, accelerator.device()));
    auto on_host = group.all_reduce_async(torch::ones({4}));
    CHECK_THROWS_AS(on_host.wait(200ms), Error);
    try {
      at::accelerator::synchronizeDevice(0);
      FAIL_CHECK("the reduction ended");
    } catch (const c10::DistBackendError& error) {
      CHECK(std::string(error.what_without_backtrace()) == "a rank gave up");
    }
  });
  CHECK(std::chrono::steady_clock::now() - begun < 40s);  // the timeout is 60 s
}

TEST_CASE("an exception that ends a rank does not wait for operations that other ranks never join") {
  const auto begun = std::chrono::steady_clock::now();
  const auto run = [] {
    on_devices(2, [](Accelerator& accelerator) {
      if (!accelerator.is_main_process()) return;
      const auto pending = accelerator.group().all_reduce_async(torch::ones({4}, accelerator.device()));
      throw std::runtime_error("disk full");
    });
  };
  CHECK_THROWS_WITH(run(), "disk full");
  CHECK(std::chrono::steady_clock::now() - begun < 40s);  // the timeout is 60 s
}
