// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include <future>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/comm/collectives_support.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/world.hpp"

namespace {

/// Runs on the group of the job. If the job has one rank without a connection, runs on a connected group of one, too.
void on_every_rank(const std::function<void(const Group&)>& check) {
  check(testing::world());
  if (testing::world().backend() != "single") return;
  auto options = testing::connect_options();
  options.force_group = true;
  static const Group forced = accelerate::comm::connect(testing::process_env(), options);
  check(forced);
}

}  // namespace

#define COLLECTIVES_CASE(name) TEST_CASE("processes: " name)
#define ON_EVERY_RANK on_every_rank
#include "tests/comm/collectives_cases.hpp"

TEST_CASE("the group contains all ranks of the job on the requested backend") {
  const auto process = testing::process_env();
  const auto& group = testing::world();
  CHECK(group.rank() == process.rank);
  CHECK(group.size() == process.world_size);
  CHECK(group.place().host == accelerate::base::host_name());
  const auto variables = accelerate::env::current_variables();
  const auto requested = variables.find("ACCELERATE_BACKEND");
  if (requested == variables.end()) return;
  const auto options = testing::connect_options();
  if (group.size() == 1 && !options.force_group) {
    CHECK(group.backend() == "single");
  } else if (options.device) {
    CHECK(group.backend().starts_with("nccl+"));
    CHECK((requested->second == "nccl" || group.backend() == "nccl+" + requested->second));
  } else {
    CHECK(group.backend() == requested->second);
  }
}

TEST_CASE("gloo gathers large parts in a group of up to 4 ranks without other memory of their size") {
  const auto& world = testing::world();
  if (world.size() == 1 || world.size() > 4 || world.backend() != "gloo") return;  // larger groups use a ring
  constexpr int64_t kRows = 1 << 16;
  for (const auto dtype : {at::kFloat, at::kLong, at::kBFloat16}) {
    const at::Tensor mine = input_of(world.rank(), {kRows, 3}, dtype),
                     all = at::empty({world.size() * kRows, 3}, dtype);
    {
      const sharding_testing::CountedMemory counted;
      const int64_t before = counted.counts.held;
      counted.counts.peak = before;
      world.all_gather_async(all, mine).wait();
      CHECK(counted.counts.peak - before < static_cast<int64_t>(mine.nbytes()) / 10);
    }
    CHECK(at::equal(all, rows_of_all(world, [&](int64_t rank) { return input_of(rank, {kRows, 3}, dtype); })));
  }
}

TEST_CASE("several large gathers may be pending, and c10d's handle has one operation for each") {
  const auto& world = testing::world();
  const auto of = [](int64_t rank, int64_t number) { return input_of(rank + number, {1 << 15}, at::kFloat); };
  const auto whole = [&](int64_t number) { return rows_of_all(world, [&](int64_t rank) { return of(rank, number); }); };
  std::vector<at::Tensor> outputs;
  std::vector<accelerate::comm::Pending> pending;
  for (int64_t i = 0; i < 5; ++i) {
    outputs.push_back(at::zeros({world.size() * (1 << 15)}));
    pending.push_back(world.all_gather_async(outputs.back(), of(world.rank(), i)));
  }
  for (size_t i = outputs.size(); i-- > 0;) {
    pending[i].wait();
    CHECK(pending[i].done());
    CHECK(at::equal(outputs[i], whole(static_cast<int64_t>(i))));
  }
  if (world.backend() == "single") return;
  const auto group = world.duplicate();
  at::Tensor output = at::zeros_like(outputs[0]), input = of(world.rank(), 9);
  // The group's own function is deprecated in LibTorch 2.15.
  const auto work = group.process_group()->getBackend(c10::DeviceType::CPU)->_allgather_base(output, input);
  const auto future = work->getFuture();
  work->wait();
  future->wait();
  CHECK(work->isCompleted());
  CHECK(work->isSuccess());
  CHECK(at::equal(output, whole(9)));
}

TEST_CASE("operations of c10d that the MPI backend does not support are refused") {
  const auto& world = testing::world();
  if (world.size() == 1 || world.backend() != "mpi") return;
  const auto handle = world.duplicate().process_group();
  std::vector<at::Tensor> shorts{at::ones({2}, at::kShort)};
  CHECK_THROWS_WITH(handle->allreduce(shorts, {.reduceOp = c10d::ReduceOp::BAND}),
                    "the mpi backend reduces by sum, product, min and max");
  CHECK_THROWS_WITH(handle->allreduce(shorts)->wait(), "the mpi backend does not reduce int16");
  CHECK_THROWS_WITH(handle->send(shorts, static_cast<int>(world.size()), 0)->wait(),
                    "MPI reports MPI_ERR_RANK: invalid rank");
}

TEST_CASE("different roots in c10d's own broadcast over MPI are reported on every rank") {
  const auto& world = testing::world();
  if (world.size() == 1 || world.backend() != "mpi") return;
  const auto group = world.duplicate();
  std::vector<at::Tensor> ones{at::ones({2})};
  CHECK_THROWS_WITH(group.process_group()->broadcast(ones, {.rootRank = world.rank()})->wait(), "signatures differ");
}

TEST_CASE("a tensor with too many dimensions for a fingerprint is refused, and its group stays usable") {
  const auto& world = testing::world();
  if (world.size() == 1) return;
  const auto deep = at::ones(std::vector<int64_t>(17, 1));
  CHECK_THROWS_WITH(
      world.all_gather(deep),
      doctest::Contains("all_gather: the tensor has 17 dimensions, at most 16 are supported; flatten it before, "
                        "and restore its shape afterwards"));
  const std::vector<at::Tensor> pieces(static_cast<size_t>(world.size()), deep);
  CHECK_THROWS_WITH(world.all_to_all(pieces), doctest::Contains("all_to_all: the tensor has 17 dimensions"));
  CHECK_THROWS_WITH(world.send(deep, (world.rank() + 1) % world.size()),
                    doctest::Contains("send: the tensor has 17 dimensions"));
  CHECK(world.all_gather(deep.flatten()).size(0) == world.size());
}

TEST_CASE("mpi: a future's callback may hold the last handle of a group") {
  const auto& world = testing::world();
  if (world.size() == 1 || world.backend() != "mpi") return;  // LibTorch's gloo aborts the process
  struct Last {
    Group group;
    std::promise<void>& gone;
    ~Last() {
      group = Group();
      gone.set_value();
    }
  };
  std::promise<void> gone;
  std::shared_ptr<Last> last(new Last{world.duplicate(), gone});
  std::vector<at::Tensor> tensors{at::ones({2})};
  auto future = last->group.process_group()->allreduce(tensors)->getFuture();
  future->addCallback([last](c10::ivalue::Future&) mutable { last.reset(); });
  last.reset();
  CHECK((gone.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready));
  world.barrier();
}
