// SPDX-License-Identifier: Apache-2.0
// Counts the operators that a thread calls.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <string>

namespace gradient_testing {

inline thread_local std::map<std::string, int64_t> operators_called;

/// \returns the number of calls of each operator by run() on this thread, by names like "aten::zero_".
inline std::map<std::string, int64_t> operators_of(const std::function<void()>& run) {
  operators_called.clear();
  const auto note = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    ++operators_called[function.name()];
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  run();
  at::removeCallback(handle);
  return operators_called;
}

}  // namespace gradient_testing
