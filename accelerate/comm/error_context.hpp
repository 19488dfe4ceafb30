// SPDX-License-Identifier: Apache-2.0
// Private: reports errors of collectives under the name of the user's call.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include "accelerate/base/error.hpp"

namespace accelerate::comm {

/// Returns the error under the name of the user's operation: "backward: the gradients of the model are not averaged:
/// waited 60 s in operation 3 ..." instead of "all_reduce: waited ...", which the user never called.
[[nodiscard]] Error with_context(std::string_view call, std::string_view what, const RankContext& place,
                                 const Error& error);

/// Runs a collective for the user's call `call`, and returns its result. `collective` must not contain user code,
/// because its errors are renamed.
///
/// \param what  A text, or a function that returns it, which is called for an error only.
template <typename What, typename Collective>
auto with_operation_context(std::string_view call, const What& what, const RankContext& place,
                            const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) throw;
    if constexpr (std::is_invocable_v<What>) {
      throw with_context(call, what(), place, error);
    } else {
      throw with_context(call, what, place, error);
    }
  }
}

/// Returns "first.weight and 5 more", which identifies a model.
[[nodiscard]] std::string first_name_and_count(std::string_view first, size_t count);

}  // namespace accelerate::comm
