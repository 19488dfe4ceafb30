// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "accelerate/archive/json_text.hpp"

namespace accelerate::archive {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataName = "__metadata__";
static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr std::array<std::pair<std::string_view, uint64_t>, 17> kSafetensorsDtypes{{{"F64", 64},
                                                                                    {"I64", 64},
                                                                                    {"U64", 64},
                                                                                    {"C64", 64},
                                                                                    {"F32", 32},
                                                                                    {"I32", 32},
                                                                                    {"U32", 32},
                                                                                    {"F16", 16},
                                                                                    {"BF16", 16},
                                                                                    {"I16", 16},
                                                                                    {"U16", 16},
                                                                                    {"I8", 8},
                                                                                    {"U8", 8},
                                                                                    {"BOOL", 8},
                                                                                    {"F8_E4M3", 8},
                                                                                    {"F8_E5M2", 8},
                                                                                    {"F8_E8M0", 8}}};

// Limits depth and dimensions, because invalid values could use much memory.
constexpr JsonLimits kHeaderLimits{.depth = 4, .array = 64};

uint64_t natural(const json& value, const std::string& name, std::string_view what, const Origin& origin) {
  if (!value.is_number_unsigned()) {
    origin.broken("tensor {}: {} holds {}, expected an integer from 0", quote_for_terminal(name), what, value.dump());
  }
  return value.get<uint64_t>();
}

const json& field(const json& tensor, const std::string& name, const char* key, bool is_array, const Origin& origin) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || (is_array ? !found->is_array() : !found->is_string())) {
    origin.broken("tensor {}: {} is {}, expected {}", quote_for_terminal(name), key,
                  found == tensor.end() ? "missing" : found->type_name(), is_array ? "an array" : "a string");
  }
  return *found;
}

// Returns no value if the size exceeds that of any file.
std::optional<uint64_t> entry_bytes(const SafetensorsEntry& entry, uint64_t bits) {
  int64_t size = static_cast<int64_t>(bits / 8);
  bool is_empty = false;
  for (const uint64_t n : entry.shape) {  // strides are defined even without elements
    is_empty = is_empty || n == 0;
    if (__builtin_mul_overflow(size, std::max<uint64_t>(n, 1), &size)) return std::nullopt;
  }
  return is_empty ? 0 : static_cast<uint64_t>(size);
}

SafetensorsEntry entry_of(const std::string& name, const json& tensor, const Origin& origin) {
  if (!tensor.is_object()) {
    origin.broken("tensor {} is {}, expected an object with dtype, shape and data_offsets", quote_for_terminal(name),
                  tensor.type_name());
  }
  SafetensorsEntry entry{.name = name, .dtype = field(tensor, name, "dtype", false, origin).get<std::string>()};
  const auto bits = safetensors_bits(entry.dtype);
  if (!bits) {
    origin.broken("tensor {} has dtype {}, which is not supported; convert it", quote_for_terminal(name),
                  quote_for_terminal(entry.dtype));
  }
  for (const json& n : field(tensor, name, "shape", true, origin)) {
    entry.shape.push_back(natural(n, name, "shape", origin));
  }
  const json& offsets = field(tensor, name, "data_offsets", true, origin);
  if (offsets.size() != 2) {
    origin.broken("tensor {}: data_offsets has {} numbers, expected 2", quote_for_terminal(name), offsets.size());
  }
  entry.begin = natural(offsets[0], name, "data_offsets", origin);
  entry.end = natural(offsets[1], name, "data_offsets", origin);
  const auto bytes = entry_bytes(entry, *bits);
  if (entry.end < entry.begin || !bytes || *bytes != entry.end - entry.begin) {
    origin.broken("tensor {} occupies bytes {} to {}, but {} of shape {} is {} bytes", quote_for_terminal(name),
                  entry.begin, entry.end, entry.dtype, json(entry.shape).dump(),
                  bytes ? std::to_string(*bytes) : "too many");
  }
  return entry;
}

std::map<std::string, std::string> metadata_of(const json& value, const Origin& origin) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;  // safetensors reads it as absent
  if (!value.is_object()) origin.broken("{} is {}, expected an object", kMetadataName, value.type_name());
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      origin.broken("{}: {} is {}, expected a string", kMetadataName, quote_for_terminal(key), text.type_name());
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void check_cover(const std::vector<SafetensorsEntry>& tensors, uint64_t data_bytes, const Origin& origin) {
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != at) {
      origin.broken("tensor {} begins at byte {} of the data, expected {}: tensors {}", quote_for_terminal(entry.name),
                    entry.begin, at, entry.begin < at ? "overlap" : "leave a gap");
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    origin.broken("the tensors have {} bytes, the file {} after its header{}", at, data_bytes,
                  at > data_bytes ? "; it was cut" : "");
  }
}

std::string dumped(const nlohmann::ordered_json& header, std::string_view operation) {
  try {
    return header.dump();
  } catch (const json::exception& error) {  // names are UTF-8
    base::fail(ErrorKind::usage, {}, operation, "a tensor's name or a text of the metadata is not UTF-8: {}",
               error.what());
  }
}

}  // namespace

std::optional<uint64_t> safetensors_bits(std::string_view dtype) {
  const auto* found = std::find_if(kSafetensorsDtypes.begin(), kSafetensorsDtypes.end(),
                                   [&](const auto& row) { return row.first == dtype; });
  return found == kSafetensorsDtypes.end() ? std::nullopt : std::optional(found->second);
}

SafetensorsHeader read_safetensors(std::string_view file, const Origin& origin, std::optional<uint64_t> file_bytes) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    origin.broken("the file has {} bytes, a safetensors file has at least 8", file.size());
  }
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes) origin.broken("the header has {} bytes, at most {} are read", length, kMaxHeaderBytes);
  if (length > file.size() - sizeof(length)) {
    origin.broken("the header has {} bytes, but {} follow its length; the file was cut, or is not a safetensors file",
                  length, file.size() - sizeof(length));
  }
  const json header = parse_json(file.substr(sizeof(length), length), "header", kHeaderLimits, origin);
  if (!header.is_object()) origin.broken("the header is {}, expected an object", header.type_name());
  SafetensorsHeader result{.data_begin = sizeof(length) + length};
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataName) {
      result.metadata = metadata_of(value, origin);
    } else {
      result.tensors.push_back(entry_of(name, value, origin));
    }
  }
  std::stable_sort(result.tensors.begin(), result.tensors.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_cover(result.tensors, file_bytes.value_or(file.size()) - result.data_begin, origin);
  return result;
}

std::string write_safetensors(std::vector<SafetensorsEntry>& tensors,
                              const std::map<std::string, std::string>& metadata, std::string_view operation) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return safetensors_bits(a.dtype).value_or(0) > safetensors_bits(b.dtype).value_or(0);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  std::set<std::string_view> names{kMetadataName};
  uint64_t at = 0;
  for (SafetensorsEntry& entry : tensors) {
    const auto bits = safetensors_bits(entry.dtype);
    if (!bits) {
      base::fail(ErrorKind::usage, {}, operation, "tensor {} has dtype {}, which safetensors does not support",
                 entry.name, entry.dtype);
    }
    if (!names.insert(entry.name).second) {
      base::fail(ErrorKind::usage, {}, operation, "the tensor name {} {}; names must be unique", entry.name,
                 entry.name == kMetadataName ? "has another meaning in safetensors" : "appears twice");
    }
    entry.begin = at;
    entry.end = at += entry_bytes(entry, *bits).value();
    // Appended without a lookup, because an ordered object searches all its names for one.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        entry.name, nlohmann::ordered_json{
                        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text = dumped(header, operation);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + text;
}

}  // namespace accelerate::archive
