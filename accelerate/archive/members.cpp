// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/members.hpp"

#include <utility>

namespace accelerate::archive {

std::optional<double> number_in(const PickleValue& value) {
  if (const auto* number = value.as<double>()) return *number;
  if (const auto* number = value.as<int64_t>()) return static_cast<double>(*number);
  return std::nullopt;
}

const PickleItems* items_in(const PickleValue& value) {
  if (const auto* list = value.as<PickleList>()) return list->items.get();
  if (const auto* tuple = value.as<PickleTuple>()) return tuple->items.get();
  return nullptr;
}

std::optional<std::string> bytes_in(const PickleValue& value) {
  if (const auto* bytes = value.as<PickleBytes>()) return bytes->bytes;
  const auto* object = value.as<PickleObject>();
  if (object == nullptr || object->parts->global != PickleGlobal{"_codecs", "encode"} ||
      object->parts->arguments.empty()) {
    return std::nullopt;
  }
  const auto* text = object->parts->arguments.front().as<std::string>();
  if (text == nullptr) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text->size(); ++i) {
    const auto first = static_cast<unsigned char>((*text)[i]);
    if (first < 0x80) {
      bytes += static_cast<char>(first);
      continue;
    }
    // Two bytes of UTF-8 for a code up to 255.
    const auto second = i + 1 < text->size() ? static_cast<unsigned char>((*text)[++i]) : 0U;
    if ((first & 0xfc) != 0xc0 || (second & 0xc0) != 0x80) return std::nullopt;
    bytes += static_cast<char>(((first & 0x03) << 6) | (second & 0x3f));
  }
  return bytes;
}

Members::Members(const PickleValue& dict, std::string where, const Origin& origin)
    : dict_(dict), where_(std::move(where)), origin_(origin) {
  if (entries_of(dict) == nullptr) origin.broken("{} is {}, expected a dict", where_, dict.kind());
}

const PickleValue& Members::value(std::string_view key) const {
  const PickleValue* found = find(dict_, key);
  if (found == nullptr) origin_.broken("{} lacks '{}'", where_, key);
  return *found;
}

int64_t Members::integer(std::string_view key) const {
  const auto* number = value(key).as<int64_t>();
  if (number == nullptr) wrong(key, value(key), "an integer");
  return *number;
}

uint64_t Members::natural(std::string_view key) const {
  const auto* number = value(key).as<int64_t>();
  if (number == nullptr) wrong(key, value(key), "an integer from 0");
  if (*number < 0) origin_.broken("'{}' of {} is {}, expected an integer from 0", key, where_, *number);
  return static_cast<uint64_t>(*number);
}

std::vector<uint64_t> Members::naturals(std::string_view key) const {
  std::vector<uint64_t> list;
  for (const PickleValue& item : items(key)) {
    const auto* number = item.as<int64_t>();
    if (number == nullptr || *number < 0) wrong(key, value(key), "a list of integers from 0");
    list.push_back(static_cast<uint64_t>(*number));
  }
  return list;
}

double Members::number(std::string_view key) const {
  const auto number = number_in(value(key));
  if (!number) wrong(key, value(key), "a number");
  return *number;
}

bool Members::boolean(std::string_view key) const {
  const auto* flag = value(key).as<bool>();
  if (flag == nullptr) wrong(key, value(key), "a bool");
  return *flag;
}

const std::string& Members::text(std::string_view key) const {
  const auto* text = value(key).as<std::string>();
  if (text == nullptr) wrong(key, value(key), "a text");
  return *text;
}

const PickleItems& Members::items(std::string_view key) const {
  const PickleItems* list = items_in(value(key));
  if (list == nullptr) wrong(key, value(key), "a list");
  return *list;
}

std::vector<double> Members::numbers(std::string_view key) const {
  std::vector<double> list;
  for (const PickleValue& item : items(key)) {
    const auto number = number_in(item);
    if (!number) wrong(key, item, "numbers");
    list.push_back(*number);
  }
  return list;
}

Members Members::members(std::string_view key) const { return {value(key), where_ + "." + std::string(key), origin_}; }

void Members::wrong(std::string_view key, const PickleValue& value, std::string_view expected) const {
  origin_.broken("'{}' of {} is {}, expected {}", key, where_, value.kind(), expected);
}

}  // namespace accelerate::archive
