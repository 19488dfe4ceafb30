// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/out_of_memory.hpp"

namespace accelerate::device {

void fail_out_of_memory(const c10::OutOfMemoryError& error, const Place& place, std::string_view operation) {
  std::string_view said = error.what_without_backtrace();
  while (!said.empty() && (said.back() == '.' || said.back() == '\n' || said.back() == ' ')) said.remove_suffix(1);
  base::fail(ErrorKind::device, place, operation,
             "{}; take a smaller batch, or let find_executable_batch_size() look for one", said);
}

}  // namespace accelerate::device
