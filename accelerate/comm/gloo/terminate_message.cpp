// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/terminate_message.hpp"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

namespace accelerate::comm {
namespace {

std::string* last_output_text = nullptr;  // never freed: it is read while the process ends
std::terminate_handler others = nullptr;

/// Matches "[enforce fail at .../gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 20 vs 16".
bool is_size_check(const char* text) {
  const std::string_view what(text);
  return what.find("enforce fail") != std::string_view::npos && what.find("transport") != std::string_view::npos;
}

[[noreturn]] void at_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    if (is_size_check(error.what())) {
      static_cast<void>(!::write(STDERR_FILENO, last_output_text->data(), last_output_text->size()));
      std::_Exit(1);
    }
  } catch (...) {
  }
  if (others != nullptr) others();
  std::abort();
}

}  // namespace

void install_terminate_message(const RankContext& place) {
  static std::once_flag once;
  std::call_once(once, [&] {
    last_output_text = new std::string(
        base::prefix(place) +
        "gloo: the ranks give tensors of different sizes to one operation, and gloo ends the process for that; with "
        "ACCELERATE_DEBUG_MODE=1 (accelerate_launch --debug) every rank reports its call\n");
    others = std::set_terminate(at_terminate);
  });
}

}  // namespace accelerate::comm
