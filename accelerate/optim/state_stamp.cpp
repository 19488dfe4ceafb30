// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/state_stamp.hpp"

#include <c10/util/hash.h>

#include <string_view>
#include <type_traits>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/optim/optimizer_fields.hpp"

namespace accelerate::optim {

uint64_t state_stamp(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return 0;
  size_t stamp = 0;
  visit_stock(optimizer, [&]<typename Fields>(Fields) {
    // Step counts are left out: the library corrects them for skipped steps at other times, too.
    Fields::state(static_cast<typename Fields::State&>(*found->second), [&](std::string_view, const auto& value) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, at::Tensor>) {
        if (!value.defined()) return;
        stamp = c10::hash_combine(stamp, reinterpret_cast<uintptr_t>(value.unsafeGetTensorImpl()));
        stamp = c10::hash_combine(stamp, static_cast<size_t>(base::version_of(value)));
      }
    });
  });
  return stamp;
}

}  // namespace accelerate::optim
