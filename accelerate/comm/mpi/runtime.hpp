// SPDX-License-Identifier: Apache-2.0
// MPI's start and end, which a process has once. Private to the mpi backend.
#pragma once

#include <ATen/core/Tensor.h>
#define OMPI_SKIP_MPICXX 1  // the C interface is all we use; the C++ one would want to be linked
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

/// \throws PeerLost with MPI's own text.
void check_mpi(int code);

class MpiRuntime {
 public:
  /// Initialises MPI with MPI_THREAD_MULTIPLE unless the program has done so, and compares its size and rank with the
  /// job's. There is one instance per process. It finalizes MPI at the end of the program if it initialised MPI and no
  /// error occurred.
  /// \throws Error (environment) with both values; Error (peer) if the other ranks did not join within the timeout.
  static std::shared_ptr<MpiRuntime> start(const env::ProcessEnv& process, const Place& place,
                                           std::chrono::milliseconds timeout);

  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  /// Duplicates the communicator of all ranks; a collective call. \throws Error (peer) if a rank did not join within
  /// the timeout.
  [[nodiscard]] MPI_Comm duplicate_world(const env::ProcessEnv& process, const Place& place,
                                         std::chrono::milliseconds timeout);
  /// For each rank of a communicator: whether it is on another machine, as duplicate_world() found.
  [[nodiscard]] std::vector<bool> elsewhere(MPI_Comm communicator) const;
  /// The ranks of a communicator as ranks of the job.
  [[nodiscard]] static std::vector<int> job_ranks(MPI_Comm communicator);
  /// A call may hang in MPI for ever: MPI_Finalize would too.
  void skip_finalize() noexcept { skip_ = true; }
  [[nodiscard]] static bool finalized() noexcept;
  /// MPI can still be called, and no call of it hangs for all that is known.
  [[nodiscard]] bool usable() const noexcept { return !finalized() && !skip_; }
  /// True if a rank of the job announced the end of its program. Its earlier messages may still be in transit.
  /// \throws PeerLost
  [[nodiscard]] static bool has_ended(int64_t job_rank);
  /// MPI's type and operation for a dtype that wire_format_of gives; our own for float16 and bfloat16, and where a NaN
  /// could be lost: in the max and min of floating point.
  using Reduction = std::pair<MPI_Datatype, MPI_Op>;
  [[nodiscard]] Reduction reduction(at::ScalarType dtype, ReduceOp op);

 private:
  MpiRuntime() = default;
  void finalize() noexcept;
  static void say_farewell() noexcept;
  static void at_exit(int status, void* runtime);

  std::atomic<bool> skip_ = false;
  Place place_{};
  std::chrono::milliseconds timeout_{};
  MPI_Group here_ = MPI_GROUP_NULL;  // the ranks of this machine
  std::once_flag own_ops_made_;
  std::map<at::ScalarType, std::array<MPI_Op, 5>> own_ops_;
};

}  // namespace accelerate::comm
