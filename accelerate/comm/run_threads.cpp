// SPDX-License-Identifier: Apache-2.0
#include <mutex>
#include <thread>

#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/threads.hpp"

namespace accelerate::comm {
namespace {

/// The exception that came first in time: later ones are its echo on other ranks.
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

std::shared_ptr<Group::Impl> rank_of(const ThreadsWorld& world, int64_t rank, int64_t size,
                                     std::chrono::milliseconds timeout) {
  auto impl = std::make_shared<Group::Impl>();
  impl->place = {.rank = rank, .world_size = size, .host = base::host_name()};
  impl->rank = rank;
  impl->size = size;
  impl->name = "world";
  impl->labels = all_ranks(size);
  impl->timeout = timeout;
  impl->cpu = world.link(rank);
  return impl;
}

void run_rank(const ThreadsWorld& world, std::shared_ptr<Group::Impl> impl, FirstError& error,
              const std::function<void(Group)>& rank_main) {
  const int64_t rank = impl->rank;
  std::string why = "has ended";
  try {
    rank_main(make_group(std::move(impl)));
  } catch (const std::exception& caught) {
    error.keep(std::current_exception());  // before the others can notice
    why = fmt::format("ended with: {}", caught.what());
  } catch (...) {
    error.keep(std::current_exception());
    why = "ended with an exception";
  }
  world.leave(rank, why);
}

}  // namespace

void run_threads(int64_t world_size, const std::function<void(Group)>& rank_main, std::chrono::milliseconds timeout) {
  if (world_size < 1) {
    base::fail(ErrorKind::usage, {}, "run_threads", "world_size is {}, must be at least 1", world_size);
  }
  const ThreadsWorld world(world_size);
  FirstError error;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { run_rank(world, rank_of(world, rank, world_size, timeout), error, rank_main); });
  }
  for (auto& thread : threads) thread.join();
  error.rethrow();
}

}  // namespace accelerate::comm
