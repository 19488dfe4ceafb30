// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/threads/run_ranks.hpp"

#include <mutex>
#include <system_error>
#include <thread>

#include "accelerate/comm/threads/backend.hpp"

namespace accelerate::comm {
namespace {

/// The earliest exception. Later ones are its consequences on other ranks.
class FirstError {
 public:
  void keep(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

GroupPtr rank_of(const ThreadsWorld& world, int64_t rank, int64_t size, std::chrono::milliseconds timeout) {
  auto group = std::make_shared<GroupCore>();
  group->place = {.rank = rank, .world_size = size, .host = base::host_name()};
  group->rank = rank;
  group->size = size;
  group->name = "world";
  group->job_ranks = all_ranks(size);
  group->timeout = timeout;
  group->cpu = world.connection(rank);
  return with_process_group(std::move(group));
}

/// Shared state of the ranks of one run.
struct Run {
  const ThreadsWorld& world;
  const int64_t size;
  const std::chrono::milliseconds timeout;
  const std::function<void(GroupPtr)>& rank_main;
  FirstError error{};
};

void run_rank(Run& run, int64_t rank) {
  std::string reason = "has ended";
  try {
    run.rank_main(rank_of(run.world, rank, run.size, run.timeout));
  } catch (const std::exception& caught) {
    run.error.keep(std::current_exception());  // before the other ranks can notice it
    reason = fmt::format("ended with: {}", caught.what());
  } catch (...) {
    run.error.keep(std::current_exception());
    reason = "ended with an exception";
  }
  run.world.mark_left(rank, reason);
}

/// Called if a thread cannot be started. All ranks without a thread leave, because the running ranks would otherwise
/// wait for them forever.
void abort_ranks(Run& run, int64_t rank, const std::system_error& error) {
  run.error.keep(std::make_exception_ptr(
      Error(ErrorKind::environment, {}, "run_threads",
            fmt::format("{} of {} threads could be started, then the system refused: {}; run fewer ranks, or raise the "
                        "limits on threads and memory (ulimit -u, ulimit -v)",
                        rank, run.size, error.code().message()))));
  for (; rank < run.size; ++rank) run.world.mark_left(rank, "could not be started");
}

}  // namespace

void run_ranks(int64_t world_size, const std::function<void(GroupPtr)>& rank_main, std::chrono::milliseconds timeout) {
  if (world_size < 1) {
    base::fail(ErrorKind::usage, {}, "run_threads", "world_size is {}, must be at least 1", world_size);
  }
  const ThreadsWorld world(world_size);
  Run run{.world = world, .size = world_size, .timeout = timeout, .rank_main = rank_main};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(world_size));
  for (int64_t rank = 0; rank < world_size; ++rank) {
    try {
      threads.emplace_back([&run, rank] { run_rank(run, rank); });
    } catch (const std::system_error& error) {
      abort_ranks(run, rank, error);
      break;
    }
  }
  for (auto& thread : threads) thread.join();
  run.error.rethrow();
}

}  // namespace accelerate::comm
