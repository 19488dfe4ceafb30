// SPDX-License-Identifier: Apache-2.0
// Private: reports errors of collectives under the name of the user's call.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"

namespace accelerate::comm {

/// Returns the Error under the user's operation: "backward: the gradients of the model are not averaged: waited 60 s in
/// operation 3 ([34] float32); rank 0 did not join." instead of "all_reduce: waited ...", which the user never called.
[[nodiscard]] Error told_as(std::string_view call, std::string_view what, const Place& place, const Error& error);

/// What the collective returns, which runs for the user's call. Code of the user's is no part of it.
template <typename Collective>
auto in_user_call(std::string_view call, std::string_view what, const Place& place, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) throw;
    throw told_as(call, what, place, error);
  }
}

/// Returns "first.weight and 5 more", which identifies a model.
[[nodiscard]] std::string first_and_more(std::string_view first, size_t count);

}  // namespace accelerate::comm
