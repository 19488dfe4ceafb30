// SPDX-License-Identifier: Apache-2.0
// Callbacks from libpmix's own thread.
#pragma once

#include <pmix_server.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/pmix/server.hpp"

namespace accelerate::launch {

/// Events that the ranks reported to the server. Written by libpmix's thread.
class PmixEvents {
 public:
  PmixEvents() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  PmixEvents(const PmixEvents&) = delete;
  PmixEvents& operator=(const PmixEvents&) = delete;

  void connected(int64_t rank) {
    const std::lock_guard lock(mutex_);
    came_.insert(rank);
    open_.insert(rank);
    wake();
  }
  void finalized(int64_t rank) {
    const std::lock_guard lock(mutex_);
    open_.erase(rank);
  }
  void abort(int64_t rank, int code) {
    const std::lock_guard lock(mutex_);
    if (!abort_) abort_ = MpiAbort{.rank = rank, .code = code};
    wake();
  }
  [[nodiscard]] int wake_fd() const { return wake_.get(); }
  void clear_wakeup() const {
    uint64_t count = 0;
    [[maybe_unused]] const auto got = read(wake_.get(), &count, sizeof count);
  }
  [[nodiscard]] bool joined_mpi_init(int64_t rank) const {
    const std::lock_guard lock(mutex_);
    return came_.contains(rank);
  }
  [[nodiscard]] bool is_open(int64_t rank) const {
    const std::lock_guard lock(mutex_);
    return open_.contains(rank);
  }
  [[nodiscard]] std::optional<MpiAbort> aborted() const {
    const std::lock_guard lock(mutex_);
    return abort_;
  }

 private:
  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
  }

  mutable std::mutex mutex_;
  std::set<int64_t> came_;
  std::set<int64_t> open_;
  std::optional<MpiAbort> abort_;
  base::FileDescriptor wake_;
};

// libpmix passes no user context to these callbacks, except the object registered with a client: our PmixEvents.
inline pmix_status_t on_connected(const pmix_proc_t* rank, void* events, pmix_info_t*, size_t, pmix_op_cbfunc_t,
                                  void*) {
  static_cast<PmixEvents*>(events)->connected(rank->rank);
  return PMIX_OPERATION_SUCCEEDED;
}

inline pmix_status_t on_finalized(const pmix_proc_t* rank, void* events, pmix_op_cbfunc_t, void*) {
  static_cast<PmixEvents*>(events)->finalized(rank->rank);
  return PMIX_OPERATION_SUCCEEDED;
}

inline pmix_status_t on_abort(const pmix_proc_t* rank, void* events, int code, const char*, pmix_proc_t*, size_t,
                              pmix_op_cbfunc_t, void*) {
  static_cast<PmixEvents*>(events)->abort(rank->rank, code);
  return PMIX_OPERATION_SUCCEEDED;
}

/// Empty, but required: libpmix removes the files of a crashed rank only if this callback is registered.
inline pmix_status_t on_job_control(const pmix_proc_t*, const pmix_proc_t*, size_t, const pmix_info_t*, size_t,
                                    pmix_info_cbfunc_t, void*) {
  return PMIX_ERR_NOT_SUPPORTED;
}

/// The callbacks above. On a single machine libpmix handles all other requests (fences, keys of other ranks) itself.
inline pmix_server_module_t callbacks() {
  pmix_server_module_t module{};
  module.client_connected2 = on_connected;
  module.client_finalized = on_finalized;
  module.abort = on_abort;
  module.job_control = on_job_control;
  return module;
}

/// Waits until libpmix's thread has completed a request.
class PmixAnswer {
 public:
  static void set(pmix_status_t status, void* answer) {
    auto& self = *static_cast<PmixAnswer*>(answer);
    const std::lock_guard lock(self.mutex_);
    self.status_ = status;
    self.condition_.notify_all();
  }
  pmix_status_t wait(pmix_status_t started) {
    if (started != PMIX_SUCCESS) return started == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : started;
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return status_.has_value(); });
    return *status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::optional<pmix_status_t> status_;
};

}  // namespace accelerate::launch
