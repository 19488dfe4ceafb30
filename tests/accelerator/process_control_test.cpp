// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <atomic>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

TEST_CASE("identity") {
  on_ranks(3, [](Accelerator& accelerator) {
    const int64_t rank = accelerator.process_index();
    CHECK(accelerator.num_processes() == 3);
    CHECK(accelerator.local_process_index() == rank);
    CHECK(accelerator.is_main_process() == (rank == 0));
    CHECK(accelerator.is_local_main_process() == (rank == 0));
    CHECK(accelerator.is_last_process() == (rank == 2));
    CHECK(accelerator.use_distributed());
    CHECK(accelerator.distributed_type() == accelerate::DistributedType::multi_cpu);
    CHECK(accelerator.device() == torch::kCPU);
    CHECK(accelerator.group().backend() == "threads");
  });
  Accelerator alone({.cpu = true});
  CHECK(alone.distributed_type() == accelerate::DistributedType::no);
  CHECK_FALSE(alone.use_distributed());
  CHECK(alone.is_main_process());
  CHECK(alone.is_last_process());
}

TEST_CASE("gather, reduce and broadcast") {
  for (const int64_t ranks : {1, 2, 3}) {
    on_ranks(ranks, [ranks](Accelerator& accelerator) {
      const int64_t rank = accelerator.process_index();
      const auto mine = torch::arange(ranks) + 1 + ranks * rank;
      CHECK(numbers(accelerator.gather(mine)) == numbers(torch::arange(ranks * ranks) + 1));
      CHECK(numbers(accelerator.gather(torch::tensor(rank))) == numbers(torch::arange(ranks)));
      CHECK(numbers(accelerator.broadcast(mine)) == numbers(torch::arange(ranks) + 1));
      const auto one = torch::full({1}, static_cast<double>(rank));
      const auto sum = static_cast<double>(ranks * (ranks - 1)) / 2;
      CHECK(accelerator.reduce(one).item<double>() == sum);
      CHECK(accelerator.reduce(one, accelerate::comm::ReduceOp::mean).item<double>() ==
            doctest::Approx(sum / static_cast<double>(ranks)));
      CHECK(accelerator.reduce(one, accelerate::comm::ReduceOp::sum, 0.5).item<double>() == sum / 2);
      CHECK(one.item<double>() == static_cast<double>(rank));
      const auto [left, right] = accelerator.gather(std::pair{mine, one});
      CHECK(left.size(0) == ranks * ranks);
      CHECK(right.size(0) == ranks);
    });
  }
}

TEST_CASE("reduce() accepts the reduction's name and refuses a wrong one") {
  on_ranks(2, [](Accelerator& accelerator) {
    const auto one = torch::full({1}, static_cast<double>(accelerator.process_index()));
    CHECK(accelerator.reduce(one, "mean").item<double>() == 0.5);
    CHECK(accelerator.reduce(one, "sum", 3.0).item<double>() == 3.0);
    CHECK_THROWS_WITH((void)accelerator.reduce(one, "none"),
                      doctest::Contains("reduce: the reduction is 'none', must be sum, mean, max, min or product"));
  });
}

TEST_CASE("gather_for_metrics returns one object per sample, without padding") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(counting(5, 2));
    std::vector<std::string> seen;
    for (auto& batch : loader) {
      std::vector<std::string> names;
      for (const int64_t number : numbers(batch.target)) names.push_back(std::string(static_cast<size_t>(number), ':'));
      for (const std::string& name : accelerator.gather_for_metrics(names)) seen.push_back(name);
    }
    CHECK(seen == std::vector<std::string>{"", ":", "::", ":::", "::::"});
  });
}

TEST_CASE("a prepared model's state is a dictionary of the module's own tensors") {
  Accelerator accelerator({.cpu = true});
  torch::nn::BatchNorm1d norm(2);
  const auto dict = Accelerator::get_state_dict(accelerator.prepare(norm));
  CHECK(dict.keys() ==
        std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
  CHECK(dict["weight"].data_ptr() == norm->weight.data_ptr());
  CHECK_FALSE(dict["weight"].requires_grad());
}

TEST_CASE("objects are gathered and broadcast as bytes") {
  on_ranks(3, [](Accelerator& accelerator) {
    const std::string mine(static_cast<size_t>(accelerator.process_index()), 'x');
    CHECK(accelerator.gather_object(mine) == std::vector<std::string>{"", "x", "xx"});
    CHECK(accelerator.broadcast_object(mine, 2) == "xx");
    CHECK(accelerator.broadcast_object_list({mine, "a" + mine}, 1) == std::vector<std::string>{"x", "ax"});
  });
}

TEST_CASE("a trigger set on one rank is seen once on all") {
  on_ranks(3, [](Accelerator& accelerator) {
    CHECK_FALSE(accelerator.check_trigger());
    if (accelerator.is_last_process()) accelerator.set_trigger();
    CHECK(accelerator.check_trigger());
    CHECK_FALSE(accelerator.check_trigger());
  });
}

TEST_CASE("the main process runs first, and its exception does not block the others") {
  std::atomic<int> order{0};
  on_ranks(3, [&](Accelerator& accelerator) {
    accelerator.main_process_first([&] {
      const int place = order++;
      CHECK((place == 0) == accelerator.is_main_process());
    });
    accelerator.wait_for_everyone();
    const auto fail = [&] {
      if (accelerator.is_main_process()) throw std::runtime_error("main failed");
    };
    if (accelerator.is_main_process()) {
      CHECK_THROWS_WITH(accelerator.local_main_process_first(fail), "main failed");
    } else {
      accelerator.local_main_process_first(fail);
    }
  });
}

TEST_CASE("functions run only on their processes") {
  std::atomic<int> main{0}, local{0}, last{0}, second{0}, local_second{0};
  on_ranks(3, [&](Accelerator& accelerator) {
    accelerator.on_main_process([&] { main += 1; });
    accelerator.on_local_main_process([&] { local += 1; });
    accelerator.on_last_process([&] { last += static_cast<int>(accelerator.process_index()); });
    accelerator.on_process(1, [&] { second += static_cast<int>(accelerator.process_index()); });
    accelerator.on_local_process(1, [&] { local_second += static_cast<int>(accelerator.process_index()); });
  });
  CHECK(main == 1);
  CHECK(local == 1);
  CHECK(last == 2);
  CHECK(second == 1);
  CHECK(local_second == 1);
}

TEST_CASE("inputs are split, and the first ranks get one more") {
  on_ranks(3, [](Accelerator& accelerator) {
    const std::vector<std::vector<int>> plain{{0, 1, 2}, {3, 4}, {5, 6}}, padded{{0, 1, 2}, {3, 4, 6}, {5, 6, 6}};
    const auto rank = static_cast<size_t>(accelerator.process_index());
    CHECK(accelerator.split_between_processes(std::vector<int>{0, 1, 2, 3, 4, 5, 6}) == plain[rank]);
    CHECK(accelerator.split_between_processes(std::vector<int>{0, 1, 2, 3, 4, 5, 6}, true) == padded[rank]);
  });
}

TEST_CASE("random states are equal to rank 0's after synchronisation") {
  // Ranks as threads share one generator, so only a single rank can show that the state is restored.
  Accelerator accelerator({.cpu = true});
  torch::manual_seed(3);
  accelerator.synchronize_rng_states();
  const auto after = torch::rand({2});
  torch::manual_seed(3);
  CHECK(torch::rand({2}).equal(after));
}

TEST_CASE("set_seed() works before an Accelerator exists") {
  accelerate::set_seed(5);
  const auto first = torch::rand({2});
  torch::manual_seed(5);
  CHECK(torch::equal(torch::rand({2}), first));
  accelerate::simulate(2, [] {
    static std::mutex one_after_another;  // the ranks share LibTorch's generator
    accelerate::Accelerator accelerator;
    const std::lock_guard lock(one_after_another);
    accelerate::set_seed(5, {.device_specific = true});
    const auto mine = torch::rand({2});
    torch::manual_seed(5 + static_cast<uint64_t>(accelerator.process_index()));
    CHECK(torch::equal(torch::rand({2}), mine));
  });
}

TEST_CASE("set_seed() produces equal numbers on all ranks, and different ones with device_specific") {
  Accelerator accelerator({.cpu = true});
  accelerator.set_seed(7);
  const auto first = torch::rand({4});
  accelerator.set_seed(7);
  CHECK(torch::rand({4}).equal(first));
  accelerator.set_seed(7, {.device_specific = true});  // rank 0 seeds 7 + 0
  CHECK(torch::rand({4}).equal(first));
}

TEST_CASE("the batch size shrinks by a tenth until every rank has enough memory") {
  on_ranks(2, [](Accelerator& accelerator) {
    std::vector<int64_t> tried;
    const int64_t limit = accelerator.is_main_process() ? 8 : 1000;  // only rank 0 runs out of memory
    const int64_t found = accelerator.find_executable_batch_size([&](int64_t size) {
      tried.push_back(size);
      if (size > limit) throw std::runtime_error("CUDA out of memory.");
    });
    CHECK(found == 8);
    CHECK(tried == std::vector<int64_t>{128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36,
                                        32,  28,  25,  22, 19, 17, 15, 13, 11, 9,  8});
    const auto always = [](int64_t) { throw std::runtime_error("DefaultCPUAllocator: can't allocate memory"); };
    CHECK_THROWS_WITH(
        accelerator.find_executable_batch_size(always, 16),
        doctest::Contains("find_executable_batch_size: no batch size from 16 down fitted into memory, zero "
                          "was reached; a smaller model is needed"));
    CHECK_THROWS_WITH(accelerator.find_executable_batch_size([](int64_t) { throw std::runtime_error("other"); }),
                      "other");
  });
}
