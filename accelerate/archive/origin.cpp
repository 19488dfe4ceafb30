// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

std::string in_quotes(std::string_view text) {
  constexpr size_t most = 60;
  std::string shown = "'";
  for (const char c : text.substr(0, most)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      shown += c;
    }
  }
  return shown + (text.size() > most ? "...'" : "'");
}

}  // namespace accelerate::archive
