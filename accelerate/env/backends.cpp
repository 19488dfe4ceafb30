// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/backends.hpp"

#include <algorithm>
#include <mutex>

namespace accelerate::env {
namespace {

struct Names {
  std::mutex mutex;
  std::vector<BackendName> rows{
#define ACCELERATE_BACKEND(name, device) {#name, #device},
#include "accelerate/env/backends.def"
#undef ACCELERATE_BACKEND
  };
};

/// The backend names of this process, including those added by the program.
Names& names() {
  static Names all;
  return all;
}

}  // namespace

std::vector<BackendName> backends() {
  const std::lock_guard lock(names().mutex);
  return names().rows;
}

void add_backend(const BackendName& backend) {
  const std::lock_guard lock(names().mutex);
  auto& rows = names().rows;
  if (std::find(rows.begin(), rows.end(), backend) == rows.end()) rows.push_back(backend);
}

bool is_backend(std::string_view name, std::string_view device) {
  const auto all = backends();
  return std::any_of(all.begin(), all.end(), [&](const BackendName& each) {
    return each.name == name && (device.empty() || each.device == device);
  });
}

std::string backend_choice(std::string_view device) {
  auto all = backends();
  std::erase_if(all, [&](const BackendName& each) { return !device.empty() && each.device != device; });
  std::string text;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 < all.size() ? ", " : " or ";
    text += all[i].name;
  }
  return text;
}

}  // namespace accelerate::env
