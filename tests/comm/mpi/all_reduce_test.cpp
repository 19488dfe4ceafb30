// SPDX-License-Identifier: Apache-2.0
// The ring of the mpi backend, with the ranks of this machine treated as other machines.
#include "accelerate/comm/mpi/all_reduce.hpp"

#include "tests/comm/collectives_support.hpp"
#include "tests/world.hpp"

namespace {

using accelerate::comm::MpiAllReduce;
using accelerate::comm::MpiHandshake;

/// A ring over a communicator of its own.
class RingBetweenHosts {
 public:
  RingBetweenHosts()
      : comm_(duplicate()),
        ring_(comm_, std::make_shared<MpiHandshake>(comm_),
              std::vector<bool>(static_cast<size_t>(testing::world().size()), true)) {}
  RingBetweenHosts(const RingBetweenHosts&) = delete;
  RingBetweenHosts& operator=(const RingBetweenHosts&) = delete;
  ~RingBetweenHosts() { MPI_Comm_free(&comm_); }
  MpiAllReduce* operator->() { return &ring_; }

 private:
  static MPI_Comm duplicate() {
    MPI_Comm own = MPI_COMM_NULL;
    accelerate::comm::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &own));
    return own;
  }

  MPI_Comm comm_;
  MpiAllReduce ring_;
};

// Below and above the payload of a handshake, one slice, two slices, and an odd number of slices.
constexpr std::array<int64_t, 6> kCounts{5, 5'000, 524'289, 1'000'001, 1'600'003, 2'700'001};

}  // namespace

TEST_CASE("between machines slices alternate, and all ranks receive the same sum") {
  const Group& world = testing::world();
  RingBetweenHosts ring;
  for (const int64_t count : kCounts) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
      CAPTURE(count);
      CAPTURE(dtype);
      const at::Tensor tensor = input_of(world.rank(), {count}, dtype);
      ring->run(tensor, ReduceOp::sum, {}, {});
      CHECK(tensor.equal(reduced(world, {count}, dtype, ReduceOp::sum)));
    }
    const at::Tensor noisy = noise(world.rank(), {count});
    ring->run(noisy, ReduceOp::sum, {}, {});
    for (const at::Tensor& each : world.all_gather_list(noisy)) CHECK(each.equal(noisy));
  }
}

TEST_CASE("between machines slices of rows alternate") {
  const Group& world = testing::world();
  RingBetweenHosts ring;
  for (const int64_t count : kCounts) {
    for (const auto dtype : {at::kFloat, at::kByte}) {
      CAPTURE(count);
      CAPTURE(dtype);
      const at::Tensor tensor = input_of(world.rank(), {world.size(), count}, dtype);
      ring->reduce_scatter(tensor, ReduceOp::max, {}, {});
      CHECK(tensor[world.rank()].equal(reduced(world, {world.size(), count}, dtype, ReduceOp::max)[world.rank()]));

      const at::Tensor rows = at::zeros({world.size(), count}, dtype);
      rows[world.rank()].copy_(input_of(world.rank(), {count}, dtype));
      ring->all_gather(rows, {}, {});
      CHECK(rows.equal(rows_of_all(world, [&](int64_t r) { return input_of(r, {1, count}, dtype); })));
    }
  }
}
