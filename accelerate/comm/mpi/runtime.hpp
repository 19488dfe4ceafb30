// SPDX-License-Identifier: Apache-2.0
// Start and end of MPI, once per process. Private to the mpi backend.
#pragma once

#include <ATen/core/Tensor.h>
#define OMPI_SKIP_MPICXX 1  // only the C interface is used; the C++ one would have to be linked
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/core/reduce_op.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// \throws PeerLost with MPI's error text if the code is not MPI_SUCCESS.
void check_mpi(int code);

class MpiRuntime {
 public:
  /// Initialises MPI with MPI_THREAD_MULTIPLE unless the program has done so, and compares its size and rank with the
  /// job's. There is one instance per process. It finalizes MPI at the end of the program if it initialised MPI and no
  /// error occurred.
  /// \throws Error (environment) with both values; Error (peer) if the other ranks did not join within the timeout.
  static std::shared_ptr<MpiRuntime> start(const env::ProcessEnv& process, const RankContext& place,
                                           std::chrono::milliseconds timeout);

  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// Duplicates the communicator of all ranks. Collective.
  /// \throws Error (peer) if a rank did not join within the timeout.
  [[nodiscard]] MPI_Comm duplicate_world(const env::ProcessEnv& process, const RankContext& place,
                                         std::chrono::milliseconds timeout);
  /// Returns, for each rank of a communicator, whether it is on another machine, as found by duplicate_world().
  [[nodiscard]] std::vector<bool> is_on_other_host(MPI_Comm communicator) const;
  /// Returns the ranks of a communicator as ranks of the job.
  [[nodiscard]] static std::vector<int> job_ranks(MPI_Comm communicator);
  /// Called if a call may hang in MPI forever, because MPI_Finalize would hang too.
  void skip_finalize() noexcept { skip_ = true; }
  [[nodiscard]] static bool finalized() noexcept;
  /// True if MPI can still be called and no call is known to hang.
  [[nodiscard]] bool usable() const noexcept { return !finalized() && !skip_; }
  /// True if a rank of the job announced the end of its program. Its earlier messages may still be in transit.
  /// \throws PeerLost
  [[nodiscard]] static bool has_ended(int64_t job_rank);
  /// MPI datatype and operation for a dtype from wire_format_of(). User-defined for float16 and bfloat16, and for max
  /// and min of floating-point dtypes, in which MPI could lose a NaN.
  using Reduction = std::pair<MPI_Datatype, MPI_Op>;
  [[nodiscard]] Reduction reduction(at::ScalarType dtype, ReduceOp op);

 private:
  MpiRuntime() = default;
  void finalize() noexcept;
  /// \returns whether all ranks have announced their exit before the deadline.
  static bool exchange_exits(std::chrono::steady_clock::time_point deadline);
  static void at_exit(int status, void* runtime);

  std::atomic<bool> skip_ = false;
  RankContext place_{};
  std::chrono::milliseconds timeout_{};
  MPI_Group here_ = MPI_GROUP_NULL;  // the ranks of this machine
  std::once_flag own_ops_made_;
  std::map<at::ScalarType, std::array<MPI_Op, 5>> own_ops_;
};

}  // namespace accelerate::comm
