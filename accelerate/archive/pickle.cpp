// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/pickle.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace accelerate::archive {
namespace {

class Writer {
 public:
  std::string take() { return std::move(out_); }

  void operator()(const PickleNone&) { out_ += 'N'; }
  void operator()(bool value) { out_ += value ? '\x88' : '\x89'; }
  void operator()(int64_t value) {
    if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
      out_ += 'J';
      number(static_cast<int32_t>(value));
    } else {
      std::string bytes(sizeof(value), '\0');
      std::memcpy(bytes.data(), &value, sizeof(value));
      long_integer(bytes);
    }
  }
  void operator()(const PickleBigInteger& value) { long_integer(value.bytes); }
  void operator()(double value) {  // big-endian
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    std::reverse(bytes.begin(), bytes.end());
    out_ += 'G' + bytes;
  }
  void operator()(const std::string& text) {
    if (text.size() <= std::numeric_limits<uint32_t>::max()) {
      out_ += 'X';
      number(static_cast<uint32_t>(text.size()));
    } else {  // protocol 4, which all current Python versions read
      out_ += '\x8d';
      number(uint64_t{text.size()});
    }
    out_ += text;
  }
  // Protocol 2 has no bytes. Like Python 3, this writes Latin-1 text and a call that encodes it.
  void operator()(const PickleBytes& value) {
    std::string utf8;
    for (const char c : value.bytes) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x80) {
        utf8 += c;
      } else {
        utf8 += static_cast<char>(0xc0 | (code >> 6));
        utf8 += static_cast<char>(0x80 | (code & 0x3f));
      }
    }
    (*this)(PickleGlobal{"_codecs", "encode"});
    (*this)(utf8);
    (*this)(std::string("latin1"));
    out_ += "\x86R";
  }
  void operator()(const PickleList& list) {
    out_ += ']';
    items(*list.items);
  }
  void operator()(const PickleTuple& tuple) { tuple_of(*tuple.items); }
  void operator()(const PickleDict& dict) {
    out_ += '}';
    entries(*dict.entries);
  }
  void operator()(const PickleGlobal& global) { out_ += 'c' + global.module + '\n' + global.name + '\n'; }
  void operator()(const PickleObject& object) {
    const auto& parts = *object.parts;
    (*this)(parts.global);
    tuple_of(parts.arguments);
    out_ += 'R';
    entries(parts.entries);
    items(parts.items);
    if (parts.state.as<PickleNone>() != nullptr) return;
    value(parts.state);
    out_ += 'b';
  }
  void operator()(const PicklePersistent& persistent) {
    tuple_of(*persistent.id);
    out_ += 'Q';
  }
  void value(const PickleValue& value) { std::visit(*this, static_cast<const PickleValue::variant&>(value)); }

 private:
  template <typename Number>
  void number(Number number) {
    out_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  // Omits final bytes that only repeat the sign.
  void long_integer(std::string bytes) {
    const auto repeats_sign = [&] {
      if (bytes.size() < 2) return false;
      const bool negative = (bytes[bytes.size() - 2] & 0x80) != 0;
      return bytes.back() == (negative ? '\xff' : '\0');
    };
    while (repeats_sign()) bytes.pop_back();
    out_ += '\x8a';
    out_ += static_cast<char>(bytes.size());
    out_ += bytes;
  }
  void items(const PickleItems& items) {
    if (items.empty()) return;
    out_ += '(';
    for (const PickleValue& item : items) value(item);
    out_ += 'e';
  }
  void entries(const PickleEntries& entries) {
    if (entries.empty()) return;
    out_ += '(';
    for (const auto& [key, item] : entries) {
      value(key);
      value(item);
    }
    out_ += 'u';
  }
  void tuple_of(const PickleItems& items) {
    constexpr std::string_view short_tuples = ")\x85\x86\x87";
    if (items.size() >= short_tuples.size()) out_ += '(';
    for (const PickleValue& item : items) value(item);
    out_ += items.size() < short_tuples.size() ? short_tuples[items.size()] : 't';
  }

  std::string out_ = "\x80\x02";
};

}  // namespace

std::string pickle(const PickleValue& value) {
  Writer writer;
  writer.value(value);
  return writer.take() + '.';
}

}  // namespace accelerate::archive
