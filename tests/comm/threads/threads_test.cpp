// SPDX-License-Identifier: Apache-2.0
// The conformance tests with ranks as threads, and tests for their specific behaviour.
#include <atomic>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/threads/run_ranks.hpp"
#include "tests/comm/collectives_support.hpp"

namespace {

using accelerate::comm::run_threads;
using namespace std::chrono_literals;

void on_every_rank(const std::function<void(const Group&)>& check) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) run_threads(ranks, check);
}

/// Error text of each rank, or "". A rank's own failure does not end it.
std::vector<std::string> errors_of(int64_t ranks, const std::function<void(const Group&)>& body,
                                   std::chrono::milliseconds timeout = 60s) {
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  run_threads(
      ranks,
      [&](const Group& group) {
        try {
          body(group);
        } catch (const accelerate::Error& error) {
          CHECK(error.kind() == accelerate::ErrorKind::peer);
          texts[static_cast<size_t>(group.rank())] = error.what();
        }
      },
      timeout);
  return texts;
}

std::string at_rank(int64_t rank, int64_t ranks, const std::string& text) {
  return fmt::format("[rank {} of {}, {}] {}", rank, ranks, accelerate::base::host_name(), text);
}

}  // namespace

#define COLLECTIVES_CASE(name) TEST_CASE("threads: " name)
#define ON_EVERY_RANK on_every_rank
#include "tests/comm/collectives_cases.hpp"

TEST_CASE("thread ranks produce the same bits in every run") {
  at::Tensor first;
  for (int run = 0; run < 20; ++run) {
    run_threads(4, [&](const Group& group) {
      const auto tensor = noise(group.rank(), {20'011});
      group.all_reduce(tensor);
      if (group.rank() != 0) return;
      if (first.defined()) CHECK(at::equal(first, tensor));
      first = tensor;
    });
  }
}

TEST_CASE("run_threads rethrows the first exception, not its consequences on other ranks") {
  const auto run = [] {
    run_threads(3, [](const Group& group) {
      if (group.rank() == 1) throw std::runtime_error("rank 1 fails");
      group.barrier();
    });
  };
  CHECK_THROWS_WITH_AS(run(), "rank 1 fails", std::runtime_error);
}

TEST_CASE("run_threads refuses a world size of zero") {
  CHECK_THROWS_WITH(run_threads(0, [](const Group&) {}), "run_threads: world_size is 0, must be at least 1");
}

TEST_CASE("a rank that throws breaks the group, and the others fail at once with its exception") {
  std::atomic<int> failures = 0;
  const auto begun = std::chrono::steady_clock::now();
  const auto run = [&] {
    run_threads(3, [&](const Group& group) {
      if (group.rank() == 1) throw std::runtime_error("disk full");
      const auto text =
          at_rank(group.rank(), 3, "all_reduce: operation 1 ([2] float32) cannot end: rank 1 ended with: disk full");
      CHECK_THROWS_WITH(group.all_reduce(at::ones({2})), text.c_str());
      ++failures;
    });
  };
  CHECK_THROWS_WITH(run(), "disk full");
  CHECK(failures == 2);
  CHECK(std::chrono::steady_clock::now() - begun < 30s);
}

TEST_CASE("operations do not wait for an exited rank") {
  const auto texts = errors_of(2, [](const Group& group) {
    if (group.rank() == 0) group.barrier();
  });
  CHECK(texts[0] == at_rank(0, 2, "barrier: operation 1 (no tensor) cannot end: rank 1 has ended"));
  CHECK(texts[1].empty());
}

TEST_CASE("all waiting ranks name a missing rank after the timeout, and the group is broken") {
  std::atomic<int> failed = 0;
  run_threads(
      3,
      [&](const Group& group) {
        if (group.rank() == 2) {
          while (failed < 2) std::this_thread::sleep_for(5ms);
          return;
        }
        const auto wait = [&] { group.all_reduce(at::ones({4}, at::kBFloat16), ReduceOp::max); };
        const std::string first = "waited 0.3 s in operation 1 ([4] bfloat16); rank 2 did not join.";
        CHECK_THROWS_WITH(wait(), at_rank(group.rank(), 3, "all_reduce: " + first).c_str());
        const std::string then = "this group is broken since operation 1 (all_reduce): ";
        CHECK_THROWS_WITH(group.barrier(), at_rank(group.rank(), 3, "barrier: " + then + first).c_str());
        ++failed;
      },
      300ms);
}

TEST_CASE("an error has the missing ranks as a field, also of a broken group and of a subgroup") {
  using Ranks = std::vector<int64_t>;
  std::atomic<int> failed = 0;
  run_threads(
      4,
      [&](const Group& job) {
        const Group group = job.split(job.rank() == 0 ? 1 : 0);  // ranks 1, 2 and 3
        if (job.rank() != 1) {
          while (failed < 1) std::this_thread::sleep_for(5ms);
          return;
        }
        const auto missing = [](const auto& call) {
          try {
            call();
          } catch (const accelerate::Error& error) {
            CHECK(error.rank() == 1);
            CHECK(error.world_size() == 4);
            CHECK(error.host() == accelerate::base::host_name());
            return std::pair(error.operation(), error.missing_ranks());
          }
          return std::pair(std::string(), Ranks{});
        };
        CHECK(missing([&] { group.all_reduce(at::ones({4})); }) == std::pair(std::string("all_reduce"), Ranks{2, 3}));
        CHECK(missing([&] { group.barrier(); }) == std::pair(std::string("barrier"), Ranks{2, 3}));
        ++failed;
      },
      300ms);
}

TEST_CASE("a handle's deadline can be shorter than the group's timeout") {
  run_threads(2, [](const Group& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(500ms);
      return;
    }
    auto pending = group.all_reduce_async(at::ones({1}));
    CHECK_FALSE(pending.done());
    CHECK_THROWS_WITH(
        pending.wait(100ms),
        at_rank(0, 2, "all_reduce: waited 0.1 s in operation 1 ([1] float32); rank 1 did not join.").c_str());
  });
}

TEST_CASE("a broken group does not wait for pending operations") {
  std::atomic<bool> over = false;
  run_threads(2, [&](const Group& group) {
    if (group.rank() == 1) {
      while (!over) std::this_thread::sleep_for(5ms);
      return;
    }
    auto first = group.all_reduce_async(at::ones({1}));
    auto second = group.all_reduce_async(at::ones({2}));
    CHECK_THROWS_AS(first.wait(50ms), accelerate::Error);
    const auto begun = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH(second.wait(),
                      at_rank(0, 2,
                              "all_reduce: this group is broken since operation 1 (all_reduce): waited 0.05 s in "
                              "operation 1 ([1] float32); rank 1 did not join.")
                          .c_str());
    CHECK(std::chrono::steady_clock::now() - begun < 20s);
    over = true;
  });
}

TEST_CASE("different shapes are an error on every rank, with both values") {
  const auto texts = errors_of(3, [](const Group& group) { group.all_reduce(at::ones({group.rank() == 2 ? 5 : 4})); });
  for (int64_t r : {0, 1}) {
    CHECK(texts[static_cast<size_t>(r)] ==
          at_rank(r, 3, "all_reduce: this rank sends [4] float32, rank 2 sends [5] float32; they must be equal."));
  }
  CHECK(texts[2] ==
        at_rank(2, 3, "all_reduce: this rank sends [5] float32, rank 0 sends [4] float32; they must be equal."));
}

TEST_CASE("all_gather reports different trailing dimensions and dtypes") {
  auto texts = errors_of(2, [](const Group& group) {
    static_cast<void>(group.all_gather(at::ones({64, group.rank() == 1 ? 12 : 10})));
  });
  CHECK(texts[1] == at_rank(1, 2,
                            "all_gather: this rank sends [64, 12] float32, rank 0 sends [64, 10] float32; "
                            "only the first dimension may differ."));
  texts = errors_of(2, [](const Group& group) {
    static_cast<void>(group.all_gather(at::ones({2}, group.rank() == 1 ? at::kBool : at::kHalf)));
  });
  CHECK(texts[0] == at_rank(0, 2,
                            "all_gather: this rank sends [2] float16, rank 1 sends [2] bool; "
                            "only the first dimension may differ."));
}

TEST_CASE("different operations, roots and reductions are reported") {
  auto texts =
      errors_of(2, [](const Group& group) { group.rank() == 0 ? group.barrier() : group.broadcast(at::ones({1})); });
  CHECK(texts[0] == at_rank(0, 2,
                            "barrier: operation 1 of this rank is barrier, rank 1's operation 1 is broadcast; "
                            "all ranks must call the same operations in the same order."));
  texts = errors_of(2, [](const Group& group) { group.broadcast(at::ones({1}), group.rank()); });
  CHECK(texts[1] == at_rank(1, 2, "broadcast: this rank's root is 1, rank 0's is 0; they must be equal."));
  texts = errors_of(2, [](const Group& group) {
    group.all_reduce(at::ones({1}), group.rank() == 0 ? ReduceOp::mean : ReduceOp::max);
  });
  CHECK(texts[0] == at_rank(0, 2, "all_reduce: this rank's reduction is mean, rank 1's is max; they must be equal."));
}

TEST_CASE("the receiver refuses a message of another size") {
  const auto texts = errors_of(2, [](const Group& group) {
    if (group.rank() == 0) group.send(at::ones({4}), 1);
    if (group.rank() == 1) group.recv(at::ones({3}), 0);
  });
  CHECK(texts[0].empty());
  CHECK(texts[1] ==
        at_rank(1, 2, "recv: a message ([3] float32) cannot end: rank 0 sends 16 bytes, this rank expects 12"));
}

TEST_CASE("a subgroup detects that a member exited") {
  const auto texts = errors_of(4, [](const Group& group) {
    const auto half = group.split(group.rank() % 2);
    if (group.rank() == 3) return;
    half.barrier();
  });
  CHECK(texts[0].empty());
  CHECK(texts[2].empty());
  CHECK(texts[1] == at_rank(1, 4, "barrier: operation 1 (no tensor) cannot end: rank 3 has ended"));
}

TEST_CASE("errors of a group with a name for its ranks, and of its duplicates, contain the name") {
  std::atomic<int> failed = 0;
  run_threads(
      4,
      [&](const Group& job) {
        const Group pair = job.split(job.rank() / 2, "tensor parallel"), twin = pair.duplicate();
        const Group unnamed = pair.split(0);
        if (job.rank() != 2) {
          while (failed < 1) std::this_thread::sleep_for(5ms);
          return;
        }
        const auto text_of = [&](const std::string& text) { return at_rank(2, 4, text); };
        const std::string reason =
            "waited 0.3 s in operation 3 ([4] float32) over the 2 tensor parallel ranks; rank 3 did not join.";
        CHECK_THROWS_WITH(pair.all_reduce(at::ones({4})), text_of("all_reduce: " + reason).c_str());
        CHECK_THROWS_WITH(
            pair.barrier(),
            text_of("barrier: this group of 2 tensor parallel ranks is broken since operation 3 (all_reduce): " +
                    reason)
                .c_str());
        CHECK_THROWS_WITH(
            twin.barrier(),
            text_of("barrier: waited 0.3 s in operation 1 (no tensor) over the 2 tensor parallel ranks; rank 3 did not "
                    "join.")
                .c_str());
        CHECK_THROWS_WITH(unnamed.barrier(),
                          text_of("barrier: waited 0.3 s in operation 1 (no tensor); rank 3 did not join.").c_str());
        ++failed;
      },
      300ms);
}

TEST_CASE("calls of a named group that do not match, its messages, and ended ranks are reported with the name") {
  auto texts = errors_of(4, [](const Group& job) {
    job.split(job.rank() % 2, "data parallel").all_reduce(at::ones({job.rank() == 3 ? 5 : 4}));
  });
  CHECK(texts[0].empty());
  CHECK(texts[1] == at_rank(1, 4,
                            "all_reduce: over the 2 data parallel ranks, this rank sends [4] float32, rank 3 sends [5] "
                            "float32; they must be equal."));
  texts = errors_of(2, [](const Group& job) {
    const auto stages = job.split(0, "pipeline parallel");
    if (job.rank() == 0) stages.send(at::ones({4}), 1);
    if (job.rank() == 1) stages.recv(at::ones({3}), 0);
  });
  CHECK(texts[1] == at_rank(1, 2,
                            "recv: a message ([3] float32) between pipeline parallel ranks cannot end: rank 0 sends 16 "
                            "bytes, this rank expects 12"));
  texts = errors_of(2, [](const Group& job) {
    const auto half = job.split(0, "context parallel");
    if (job.rank() == 0) half.barrier();
  });
  CHECK(texts[0] == at_rank(0, 2,
                            "barrier: operation 1 (no tensor) over the 2 context parallel ranks cannot end: rank 1 has "
                            "ended"));
}

TEST_CASE("a tensor on a device that the group does not support is refused") {
  run_threads(2, [](const Group& group) {
    const auto meta = at::empty({2}, at::kMeta);
    CHECK_THROWS_WITH(
        group.all_reduce(meta),
        at_rank(group.rank(), 2, "all_reduce: the tensor is on meta, this group (threads) carries CPU tensors")
            .c_str());
  });
}

TEST_CASE("operations of c10d that the threads backend does not support are refused on every rank") {
  run_threads(2, [](const Group& group) {
    std::vector<at::Tensor> numbers{at::ones({2}, at::kLong)};
    std::vector<at::Tensor> shorts{at::ones({2}, at::kShort)};
    const auto handle = group.process_group();
    CHECK_THROWS_WITH(handle->allreduce(numbers, {.reduceOp = c10d::ReduceOp::BAND}),
                      "the threads backend reduces by sum, product, min and max");
    CHECK_THROWS_WITH(handle->allreduce(shorts)->wait(), "no kernel reduces int16");
  });
}

TEST_CASE("different operations on c10d's handle are reported") {
  std::atomic<int> failures = 0;
  run_threads(2, [&](const Group& group) {
    const auto handle = group.process_group();
    std::vector<at::Tensor> ones{at::ones({2})};
    try {
      (group.rank() == 0 ? handle->allreduce(ones) : handle->broadcast(ones))->wait();
    } catch (const std::exception& error) {
      CHECK(std::string(error.what()).starts_with("another rank calls "));
      ++failures;
    }
  });
  CHECK(failures == 2);
}

TEST_CASE("unequal sizes, dtypes or reductions in c10d's own calls are reported without invalid reads") {
  const auto errors = [](const std::function<void(const Group&, c10d::ProcessGroup&)>& call) {
    std::vector<std::string> texts(2);
    run_threads(2, [&](const Group& group) {
      try {
        call(group, *group.process_group());
      } catch (const std::exception& error) {
        texts[static_cast<size_t>(group.rank())] = error.what();
      }
    });
    return texts;
  };
  const auto both = [](const std::string& text) { return std::vector<std::string>{text, text}; };
  CHECK(errors([](const Group& group, c10d::ProcessGroup& handle) {
          std::vector<at::Tensor> tensors{at::ones({group.rank() == 0 ? 4 : 5'000})};
          handle.allreduce(tensors)->wait();
        }) == both("rank 1 gives [5000] float32, rank 0 gives [4] float32; they must be equal"));
  CHECK(errors([](const Group& group, c10d::ProcessGroup& handle) {
          std::vector<at::Tensor> tensors{at::ones({4}, group.rank() == 0 ? at::kFloat : at::kInt)};
          handle.broadcast(tensors)->wait();
        }) == both("rank 1 gives [4] int32, rank 0 gives [4] float32; they must be equal"));
  CHECK(errors([](const Group&, c10d::ProcessGroup& handle) {
          auto output = at::zeros({3});
          auto input = at::ones({2});
          handle._allgather_base(output, input)->wait();
        }) == both("rank 0's input [2] float32 and output [3] float32 do not fit together for 2 ranks"));
  CHECK(errors([](const Group& group, c10d::ProcessGroup& handle) {
          auto output = at::zeros({2 + group.rank()});
          auto input = at::ones({2});
          std::vector<int64_t> equal;
          handle.alltoall_base(output, input, equal, equal)->wait();
        }) == both("rank 1 gets 8 bytes, its output has 12"));
  const auto reductions = errors([](const Group& group, c10d::ProcessGroup& handle) {
    std::vector<at::Tensor> tensors{at::ones({4})};
    handle.allreduce(tensors, {.reduceOp = group.rank() == 0 ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX})->wait();
  });
  for (const auto& text : reductions) CHECK(text.starts_with("another rank reduces by "));
  const auto roots = errors([](const Group& group, c10d::ProcessGroup& handle) {
    std::vector<at::Tensor> tensors{at::ones({4})};
    handle.broadcast(tensors, {.rootRank = group.rank()})->wait();
  });
  for (const auto& text : roots) CHECK(text.starts_with("another rank's root is "));
}

TEST_CASE("a call through c10d that differs from a library call is reported, in either order") {
  for (const int64_t first : {0, 1}) {
    std::atomic<bool> joined_mpi_init = false;
    std::atomic<int> failures = 0;
    run_threads(2, [&](const Group& group) {
      auto ones = at::ones({2});
      std::vector<at::Tensor> list{ones};
      while (group.rank() != first && !joined_mpi_init) std::this_thread::sleep_for(1ms);
      try {
        if (group.rank() == 0) {
          const auto work = group.process_group()->allreduce(list);
          joined_mpi_init = true;
          work->wait();
        } else {
          auto pending = group.broadcast_async(ones, 0);
          joined_mpi_init = true;
          pending.wait();
        }
      } catch (const std::exception& error) {
        const std::string text = error.what();
        CAPTURE(text);
        CHECK(text.find("another rank calls ") != std::string::npos);
        ++failures;
      }
    });
    CHECK(failures == 2);
  }
}

TEST_CASE("two different library calls are reported although a third rank calls c10d itself") {
  std::atomic<int64_t> come = 0;
  std::atomic<int> failures = 0;
  run_threads(3, [&](const Group& group) {
    auto bytes = at::ones({2});
    std::vector<at::Tensor> list{bytes};
    while (come != group.rank()) std::this_thread::sleep_for(1ms);
    try {
      if (group.rank() == 1) {
        const auto work = group.process_group()->allreduce(list);
        ++come;
        work->wait();
      } else {
        auto pending = group.all_reduce_async(bytes, group.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
        ++come;
        pending.wait();
      }
    } catch (const std::exception& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find("another rank reduces by sum here, this one by max") != std::string::npos);
      ++failures;
    }
  });
  CHECK(failures == 3);
}

TEST_CASE("c10d's send returns a handle with wait()") {
  run_threads(2, [](const Group& group) {
    std::vector<at::Tensor> tensors{at::full({2}, group.rank() == 0 ? 7.0 : 0.0)};
    const auto handle = group.process_group();
    if (group.rank() == 0) CHECK(handle->send(tensors, 1, 3)->wait());
    if (group.rank() == 1) CHECK(handle->recv(tensors, 0, 3)->wait());
    CHECK(tensors[0][0].item<double>() == 7.0);
  });
}

TEST_CASE("a timeout of zero or less polls once") {
  for (const auto time : {0ms, -5ms}) {
    std::atomic<bool> over = false;
    run_threads(2, [&](const Group& group) {
      if (group.rank() == 1) {
        while (!over) std::this_thread::sleep_for(1ms);
        return;
      }
      auto pending = group.all_reduce_async(at::ones({1}));
      CHECK_THROWS_WITH(
          pending.wait(time),
          at_rank(0, 2, "all_reduce: waited 0.001 s in operation 1 ([1] float32); rank 1 did not join.").c_str());
      over = true;
    });
  }
}

TEST_CASE("debug: an operation of one rank between two steps is reported with the other rank's call") {
  std::vector<std::string> messages(2);
  const auto rank_main = [&](const accelerate::comm::GroupPtr& core) {
    core->debug = true;
    const Group group(core);
    const Group model = group.duplicate();
    try {
      for (int step = 0; step < 2; ++step) {
        model.all_reduce(at::ones({6}));
        if (step == 0 && group.rank() == 1) group.all_reduce(at::ones({2}));
      }
    } catch (const accelerate::Error& error) {
      messages[static_cast<size_t>(group.rank())] = error.what();
    }
  };
  accelerate::comm::run_ranks(2, rank_main, 60s);
  CHECK(messages[0] ==
        at_rank(0, 2,
                "all_reduce: this rank calls all_reduce ([6] float32) on a duplicate of the group, rank 1 "
                "calls all_reduce ([2] float32); all ranks must call the same operations in the same order."));
  CHECK(messages[1] ==
        at_rank(1, 2,
                "all_reduce: this rank calls all_reduce ([2] float32), rank 0 calls all_reduce ([6] "
                "float32) on a duplicate of the group; all ranks must call the same operations in the same "
                "order."));
}

TEST_CASE("an invalid tag, layout or mix of devices is refused") {
  run_threads(2, [](const Group& group) {
    const auto text = [&](const std::string& what) { return at_rank(group.rank(), 2, what); };
    CHECK_THROWS_WITH(group.send(at::ones({1}), 1 - group.rank(), 32'766),
                      text("send: tag is 32766, must be 0 to 32765").c_str());
    CHECK_THROWS_WITH(group.all_reduce(at::ones({2}).to_sparse()),
                      text("all_reduce: the tensor is Sparse, only dense tensors are reduced").c_str());
    CHECK_THROWS_WITH(group.all_to_all({at::ones({1}), at::empty({1}, at::kMeta)}),
                      text("all_to_all: one tensor is on cpu, another on meta; they must be on one device").c_str());
  });
}
