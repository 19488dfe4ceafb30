// SPDX-License-Identifier: Apache-2.0
#include "bench/resident.hpp"

#include <malloc.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {
namespace {

double status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == key && file >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + key);
}

}  // namespace

double resident_bytes() {
  malloc_trim(0);
  return status_bytes("VmRSS:");
}

double resident_bytes_after(const std::function<void()>& work) {
  work();
  return resident_bytes();
}

double peak_bytes_of(const std::function<void()>& work) {
  malloc_trim(0);
  if (!(std::ofstream("/proc/self/clear_refs") << "5" << std::flush)) {
    throw std::runtime_error("/proc/self/clear_refs cannot be written, so VmHWM cannot be reset");
  }
  work();
  return status_bytes("VmHWM:");
}

}  // namespace bench
