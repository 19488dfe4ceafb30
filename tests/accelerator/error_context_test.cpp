// SPDX-License-Identifier: Apache-2.0
// Errors of collectives are reported under the name of the user's call.
#include "tests/testing.hpp"
//
#include "accelerate/comm/threads/run_ranks.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;

namespace {

std::string prefix_of(int64_t rank) {
  return accelerate::base::prefix({.rank = rank, .world_size = 2, .host = accelerate::base::host_name()});
}

/// Thrown on rank 1, which leaves the job between two calls.
struct LeavesTheJob : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "elsewhere"; }
};

/// Makes rank 1 leave.
using Leave = std::function<void()>;
using Program = std::function<void(Accelerator&, const Leave&)>;

/// Rank 0's error text if rank 1 leaves the program.
std::string error_on_remaining_ranks(const Program& program, const AcceleratorOptions& options) {
  std::string text = "nothing";
  const auto rank_main = [&](const accelerate::comm::Group& group) {
    Accelerator accelerator(group, options);
    const auto leave = [&] {
      if (group.rank() == 1) throw LeavesTheJob();
    };
    try {
      program(accelerator, leave);
    } catch (const accelerate::Error& error) {
      CHECK((error.kind() == accelerate::ErrorKind::peer));
      text = error.what();
    }
  };
  try {
    accelerate::comm::run_threads(2, rank_main);
  } catch (const LeavesTheJob&) {
  }
  return text;
}

void check_peer_error(const std::string& words, const Program& program, const AcceleratorOptions& options = {}) {
  const std::string text = error_on_remaining_ranks(program, options);
  CAPTURE(text);
  CHECK(text.starts_with(prefix_of(0) + words + ": "));
  CHECK(text.find("rank 1 ") != std::string::npos);
}

torch::Tensor learnt() { return torch::zeros({4, 2}, torch::requires_grad()); }

}  // namespace

TEST_CASE("a lost rank is reported under the user's call: loaders") {
  const auto passes = [](Accelerator& accelerator, const Leave& leave) {
    auto loader = accelerator.prepare(std::vector<torch::Tensor>(8, torch::zeros({2})));
    leave();
    for ([[maybe_unused]] auto& batch : loader) continue;
  };
  check_peer_error("loader: the ranks did not synchronize the start of a pass", passes);
  check_peer_error("loader: batches that rank 0 reads for all (dispatch_batches) are not handed out", passes,
                   {.dispatch_batches = true});
  const auto sampled = [](Accelerator& accelerator, const Leave& leave) {
    auto loader = accelerator.prepare(counting(8, 2));
    leave();
    for ([[maybe_unused]] auto& batch : loader) continue;
  };
  check_peer_error("loader: the ranks' orders are not compared, as debug mode does", sampled, {.debug = true});
  check_peer_error("prepare: the loader's seed is not made equal", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    (void)accelerator.prepare(counting(8, 2, {.shuffle = true}));
  });
}

TEST_CASE("a lost rank is reported under the user's call: the step") {
  const auto normalised = [](Accelerator& accelerator) {
    return accelerate::nn::SyncBatchNorm(torch::nn::BatchNormOptions(2), accelerator.group());
  };
  check_peer_error("forward: the statistics of SyncBatchNorm are not put together",
                   [&](Accelerator& accelerator, const Leave& leave) {
                     auto norm = normalised(accelerator);
                     leave();
                     norm(learnt());
                   });
  check_peer_error("backward: the sums of SyncBatchNorm are not added up",
                   [&](Accelerator& accelerator, const Leave& leave) {
                     auto norm = normalised(accelerator);
                     const auto out = norm(learnt());
                     leave();
                     out.pow(2).sum().backward();
                   });
  check_peer_error("backward: the losses' counts are not added up", [](Accelerator& accelerator, const Leave& leave) {
    OneWeight net;
    auto model = accelerator.prepare(net);
    const auto loss = model(full(1)).sum();
    leave();
    accelerator.backward(loss, {.tokens = 3});
  });
  check_peer_error("scheduler.step: the metric is not averaged", [](Accelerator& accelerator, const Leave& leave) {
    torch::optim::SGD sgd({torch::zeros({1})}, 0.1);
    auto scheduler = accelerator.prepare(accelerate::optim::ReduceLROnPlateau(sgd));
    leave();
    scheduler.step(1.0);
  });
  check_peer_error("optimizer.step: it is unknown whether gradients overflowed on any rank",
                   [](Accelerator& accelerator, const Leave& leave) {
                     torch::nn::Linear net(2, 1);
                     auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
                     const auto local = accelerator.local_sgd(model, 8);
                     accelerator.backward(model(torch::ones({1, 2})).sum());
                     leave();
                     optimizer.step();
                   },
                   {.mixed_precision = Precision::fp16});
}

TEST_CASE("a lost rank is reported under the user's call: agreements between ranks") {
  check_peer_error("check_synchronized: the tensors are not compared",
                   [](Accelerator& accelerator, const Leave& leave) {
                     OneWeight net;
                     auto model = accelerator.prepare(net);
                     leave();
                     accelerator.check_synchronized(model);
                   });
  check_peer_error("find_executable_batch_size: it is unknown whether the batch fits on all ranks",
                   [](Accelerator& accelerator, const Leave& leave) {
                     (void)accelerator.find_executable_batch_size([&](int64_t) { leave(); });
                   });
  check_peer_error("check_trigger: it is unknown whether any rank set it",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerator.check_trigger();
                   });
  check_peer_error("synchronize_rng_states: the states are not made equal",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     accelerator.synchronize_rng_states();
                   });
  check_peer_error("gather_for_metrics: the objects are not put together",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerator.gather_for_metrics(std::vector<std::string>{"one"});
                   });
  check_peer_error("main_process_first: the ranks did not synchronise",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     accelerator.main_process_first([] {});
                   });
  check_peer_error("local_main_process_first: the ranks did not synchronise",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     accelerator.local_main_process_first([] {});
                   });
}

TEST_CASE("a lost rank is reported under the user's call: exchanged values") {
  check_peer_error("gather: the ranks' values are not put together", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    (void)accelerator.gather(torch::ones({2}));
  });
  check_peer_error(
      "gather_for_metrics: the ranks' values are not put together", [](Accelerator& accelerator, const Leave& leave) {
        leave();
        (void)accelerator.gather_for_metrics(std::vector<torch::Tensor>{torch::ones({2}), torch::ones({3})});
      });
  check_peer_error("reduce: the ranks' values are not reduced", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    (void)accelerator.reduce(torch::ones({2}), "mean");
  });
  check_peer_error("broadcast: the value is not handed out", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    accelerator.broadcast(torch::ones({2}), 1);
  });
  check_peer_error("pad_across_processes: the lengths of the other ranks are unknown",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerator.pad_across_processes(torch::ones({2}));
                   });
  check_peer_error("copy_tensor_to_devices: the tensor is not handed out",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerate::tree::copy_tensor_to_devices({}, accelerator.group(), 1);
                   });
  check_peer_error("gather_object: the ranks' objects are not put together",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerator.gather_object("one");
                   });
  check_peer_error("broadcast_object: the object is not handed out", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    (void)accelerator.broadcast_object("one", 1);
  });
  check_peer_error("logger.in_order: the ranks did not synchronise", [](Accelerator& accelerator, const Leave& leave) {
    leave();
    accelerator.logger().in_order().info("one");
  });
  check_peer_error("wait_for_everyone: the ranks did not synchronise",
                   [](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     accelerator.wait_for_everyone();
                   });
}

TEST_CASE("a reduce() on a single rank is reported as reduce(), with the other rank's call") {
  std::vector<std::string> messages(2);
  accelerate::comm::run_threads(2, [&](const accelerate::comm::Group& group) {
    Accelerator accelerator(group, {});
    messages[static_cast<size_t>(group.rank())] = testing::refusal([&] {
      if (accelerator.is_main_process()) (void)accelerator.reduce(torch::ones({1}));
      accelerator.wait_for_everyone();
    });
  });
  CHECK(messages[0] ==
        prefix_of(0) +
            "reduce: the ranks' values are not reduced: operation 2 of this rank is all_reduce, rank 1's "
            "operation 2 is barrier; all ranks must call the same operations in the same order.");
  CHECK(messages[1] ==
        prefix_of(1) +
            "wait_for_everyone: the ranks did not synchronise: operation 2 of this rank is barrier, rank 0's "
            "operation 2 is all_reduce; all ranks must call the same operations in the same order.");
}

TEST_CASE("debug: reduce() on one rank and backward on the other: each error contains the other rank's call") {
  std::vector<std::string> messages(2);
  const auto rank_main = [&](const accelerate::comm::GroupPtr& core) {
    core->debug = true;
    Accelerator accelerator(accelerate::comm::Group(core), {.debug = true});
    OneWeight net;
    auto model = accelerator.prepare(net);
    const auto loss = model(full(1)).sum();
    messages[static_cast<size_t>(core->rank)] = testing::refusal([&] {
      if (accelerator.is_main_process()) (void)accelerator.reduce(loss);
      accelerator.backward(loss);
    });
  };
  accelerate::comm::run_ranks(2, rank_main, std::chrono::seconds(60));
  const std::string order = "; all ranks must call the same operations in the same order.";
  CHECK(messages[0] == prefix_of(0) +
                           "reduce: the ranks' values are not reduced: this rank calls all_reduce ([] float64), rank 1 "
                           "calls all_reduce ([4, 1] int64) on a duplicate of the group" +
                           order);
  CHECK(messages[1] ==
        prefix_of(1) +
            "backward: the gradients of the model (w) are not averaged: this rank calls all_reduce ([4, 1] "
            "int64) on a duplicate of the group, rank 0 calls all_reduce ([] float64)" +
            order);
}

TEST_CASE("a lost rank is reported under the user's call: files") {
  const testing::TemporaryFolder folder;
  check_peer_error("save_state: the ranks cannot reach each other", [&](Accelerator& accelerator, const Leave& leave) {
    leave();
    accelerator.save_state(folder / "state");
  });
  check_peer_error("load_state: it is unknown whether the other ranks failed",
                   [&](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     (void)accelerator.load_state(folder / "state");
                   });
  check_peer_error("profile: it is unknown whether the files of all ranks exist",
                   [&](Accelerator& accelerator, const Leave& leave) {
                     leave();
                     accelerator.profile({.output_trace_dir = folder / "traces"}).stop();
                   });
}
