// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/terminal_text.hpp"

#include <fmt/format.h>

namespace accelerate::base {

std::string escape_for_terminal(std::string_view text) {
  std::string shown;
  unsigned char before = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    // U+0080 to U+009F are control characters as well.
    const bool steers = byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte < 0xa0);
    steers ? shown += fmt::format("\\x{:02x}", byte) : shown += c;
    before = byte;
  }
  return shown;
}

std::string quote_for_terminal(std::string_view text) {
  constexpr size_t most = 60;
  return fmt::format("'{}{}'", escape_for_terminal(text.substr(0, most)), text.size() > most ? "..." : "");
}

}  // namespace accelerate::base
