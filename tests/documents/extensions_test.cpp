// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the pages about extensions: a service, a tracker, an optimizer, a backend.
#include <accelerate/accelerate.hpp>
#include <limits>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "tests/comm/connected_threads.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

#pragma GCC diagnostic ignored "-Wunused-variable"  // a block may declare a name without using it
#pragma GCC diagnostic ignored "-Wshadow"           // a block may use names of its surroundings

using Lines = std::vector<std::string>;

namespace service_page {

// block: docs/how_to/embed.md: A service with a training thread

}  // namespace service_page

TEST_CASE("a service trains in its own thread until it is stopped") {
  service_page::TrainingService short_run;
  short_run.start(3);
  while (short_run.steps_done() < 3) std::this_thread::yield();
  short_run.stop();
  CHECK(short_run.steps_done() == 3);
  CHECK(short_run.failure() == "");

  service_page::TrainingService endless;
  endless.start(std::numeric_limits<int64_t>::max());
  while (endless.steps_done() < 1) std::this_thread::yield();
  endless.stop();
  CHECK(endless.failure() == "");
}

namespace tracker_page {

// block: docs/how_to/custom_tracker.md: Write a tracker

}  // namespace tracker_page

TEST_CASE("a custom tracker receives every call of a run") {
  using tracker_page::LineTracker;
  const testing::TemporaryFolder folder;
  const auto logs = folder.path.string();
  Lines sent;
  const auto send = [&](const std::string& line) { sent.push_back(line); };
  // block: docs/how_to/custom_tracker.md: Write a tracker, 2
  CHECK(sent == Lines{"start digits", "config lr", "1 loss 0.25", "end"});
  CHECK(std::filesystem::exists(folder.path / "digits/metrics.csv"));
}

namespace optimizer_page {

// block: docs/how_to/custom_optimizer.md: Write an optimizer

}  // namespace optimizer_page

TEST_CASE("a custom optimizer is prepared, scheduled, saved and loaded") {
  using optimizer_page::SignSgd;
  using optimizer_page::SignSgdOptions;
  const testing::TemporaryFolder temporary;
  const auto folder = (temporary.path / "checkpoint").string();
  accelerate::simulate(2, [&] {
    accelerate::Accelerator accelerator({.cpu = true});
    const auto images = torch::full({4, 3}, static_cast<double>(accelerator.process_index() + 1));
    torch::nn::Linear net(3, 1);  // thread ranks share LibTorch's generator, so random weights would differ
    torch::nn::init::ones_(net->weight);
    torch::nn::init::zeros_(net->bias);
    // block: docs/how_to/custom_optimizer.md: Write an optimizer, 2
    CHECK(at::allclose(net->weight.detach(), torch::full({1, 3}, 1 - 0.5e-2)));
    CHECK(sign_sgd.param_groups()[0].options().get_lr() == doctest::Approx(1e-2 * 0.625));
    accelerator.check_synchronized(model);

    const auto step = [&] {
      optimizer.zero_grad();
      accelerator.backward(model(-images).sum());
      optimizer.step();
      return net->weight.detach().clone();
    };
    const auto expected = step();
    for (int i = 0; i < 20; ++i) step();  // the sign of the momentum changes unless the saved one is loaded
    accelerator.load_state(folder);
    CHECK(step().equal(expected));
  });
}

namespace backend_page {

// block: docs/how_to/custom_backend.md: Write a communication backend

}  // namespace backend_page

TEST_CASE("a custom backend sums over two ranks, and its name is a setting") {
  using backend_page::my_store;
  {
    // block: docs/how_to/custom_backend.md: Write a communication backend, 2
    CHECK(accelerator.num_processes() == 1);
  }
  const int64_t port = testing::free_port();
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank, port] {
      try {
        const auto group = accelerate::comm::connect({.rank = rank,
                                                      .world_size = 2,
                                                      .local_rank = rank,
                                                      .local_world_size = 2,
                                                      .master_addr = "127.0.0.1",
                                                      .master_port = port},
                                                     {.backend = "my_store", .timeout = std::chrono::seconds(60)});
        const auto values = torch::full({2, 3}, static_cast<double>(rank + 1));
        group.all_reduce(values);
        CHECK(values.equal(torch::full({2, 3}, 3.0)));
        group.all_reduce(values, accelerate::comm::ReduceOp::mean);
        CHECK(values.equal(torch::full({2, 3}, 3.0)));
        CHECK(group.backend() == "my_store");
        group.barrier();
      } catch (const std::exception& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
}
