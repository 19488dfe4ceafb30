// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_record.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/archive/json_text.hpp"

namespace accelerate::nn::compiled {
namespace {

using nlohmann::json;

constexpr int64_t kRecordFormat = 1;  // FORMAT in tools/export_compiled.py

Layout read_layout(const json& row, size_t symbols, const archive::Origin& origin) {
  Layout layout{.shape = row.at("shape"), .stride = row.at("stride"), .contiguous_only = row.at("contiguous")};
  const auto& known = c10::getStringToDtypeMap();
  const auto dtype = known.find(row.at("dtype").get<std::string>());
  if (dtype == known.end()) origin.broken("the record has the unknown dtype {}", row.at("dtype").dump());
  layout.dtype = dtype->second;
  const int64_t least = -static_cast<int64_t>(symbols) - 1;
  const auto is_size = [&](int64_t size) { return size >= least; };
  const auto is_stride = [](int64_t stride) { return stride >= 0; };
  if (!std::ranges::all_of(layout.shape, is_size) || !std::ranges::all_of(layout.stride, is_stride) ||
      layout.stride.size() != (layout.contiguous_only ? 0 : layout.shape.size())) {
    origin.broken("the record has shape [{}] with strides [{}]", fmt::join(layout.shape, ", "),
                  fmt::join(layout.stride, ", "));
  }
  return layout;
}

TensorRow read_tensor(const json& row, size_t symbols, uint64_t weight_bytes, const archive::Origin& origin) {
  TensorRow tensor{.name = row.at("name"),
                   .layout = read_layout(row, symbols, origin),
                   .requires_grad = row.at("requires_grad"),
                   .mutated = row.at("mutated"),
                   .persistent = row.at("persistent")};
  const std::string kind = row.at("kind");
  if (kind == "input") return tensor;
  tensor.kind = kind == "parameter" ? TensorKind::parameter : TensorKind::buffer;
  tensor.offset = row.at("offset");
  tensor.bytes = row.at("bytes");
  uint64_t expected = c10::elementSize(tensor.layout.dtype);
  for (const int64_t size : tensor.layout.shape) {
    if (size < 0 || __builtin_mul_overflow(expected, static_cast<uint64_t>(size), &expected)) expected = ~uint64_t{0};
  }
  if (tensor.bytes != expected || tensor.offset > weight_bytes || tensor.bytes > weight_bytes - tensor.offset) {
    origin.broken("the record places {} at byte {} with {} bytes, the weights have {} bytes", tensor.name,
                  tensor.offset, tensor.bytes, weight_bytes);
  }
  return tensor;
}

BackwardInput read_backward_input(const json& pair) {
  const std::string from = pair.at(0);
  return {.from = from == "input"    ? From::input
                  : from == "output" ? From::output
                                     : From::gradient,
          .index = pair.at(1)};
}

void check_indices(const Record& record, const archive::Origin& origin) {
  const auto check = [&](bool ok, std::string_view what) {
    if (!ok) origin.broken("the record refers to a {} that does not exist", what);
  };
  size_t gradients = 0;
  for (const auto& [from, index] : record.takes) {
    if (from == From::input) check(index < record.tensors.size(), "forward input");
    if (from == From::output) check(index < record.outputs_require_grad.size() + record.saved, "forward output");
    if (from == From::gradient) check(index < record.outputs_require_grad.size(), "gradient");
    if (from == From::gradient) ++gradients;
  }
  check(gradients == record.gradients.size(), "gradient");
  for (const size_t index : record.gives) check(index < record.tensors.size(), "forward input");
  check(record.count(TensorKind::parameter) > 0, "parameter");
  std::set<std::string> names;
  if (!std::ranges::is_sorted(record.tensors, {}, &TensorRow::kind)) {
    origin.broken("the record has an input before a parameter");
  }
  for (const TensorRow& tensor : record.tensors) {
    if (tensor.kind != TensorKind::input && !names.insert(tensor.name).second) {
      origin.broken("the record has {} twice", tensor.name);
    }
  }
}

Record read_members(const json& root, uint64_t weight_bytes, const archive::Origin& origin) {
  if (const int64_t format = root.at("format"); format != kRecordFormat) {
    origin.broken("the record has format {}, this library reads {}; export the module with its export_compiled.py",
                  format, kRecordFormat);
  }
  Record record{.torch = root.at("torch"),
                .cuda = root.at("cuda"),
                .device = root.at("device"),
                .cuda_capability = root.at("cuda_capability"),
                .machine = root.at("machine"),
                .processor_flags = root.at("processor_flags"),
                .autocast = root.at("autocast"),
                .threads = root.value("threads", int64_t{0}),
                .evaluation = root.at("evaluation"),
                .returns_tensor = root.at("returns_tensor"),
                .saved = root.at("saved"),
                .gives = root.at("gives")};
  for (const json& range : root.at("symbols")) {
    record.symbols.push_back({.min = range.at("min"), .max = range.at("max"), .excluded = range.at("excluded")});
  }
  const size_t symbols = record.symbols.size();
  for (const json& row : root.at("tensors")) {
    record.tensors.push_back(read_tensor(row, symbols, weight_bytes, origin));
  }
  for (const json& row : root.at("outputs")) record.outputs_require_grad.push_back(row.at("requires_grad"));
  for (const json& pair : root.at("takes")) record.takes.push_back(read_backward_input(pair));
  for (const json& row : root.at("gradients")) record.gradients.push_back(read_layout(row, symbols, origin));
  for (const auto& [alias, name] : root.at("aliases").items()) {
    record.aliases.push_back(alias + " = " + name.get<std::string>());
  }
  check_indices(record, origin);
  return record;
}

}  // namespace

bool SizeRange::contains(int64_t size) const {
  return size >= min && (max == 0 || size <= max) && std::ranges::find(excluded, size) == excluded.end();
}

std::string SizeRange::text() const {
  return fmt::format("{}{}{}", max == 0 ? fmt::format("at least {}", min) : fmt::format("{} to {}", min, max),
                     excluded.empty() ? "" : " without ", fmt::join(excluded, ", "));
}

size_t Record::count(TensorKind kind) const {
  return static_cast<size_t>(std::ranges::count(tensors, kind, &TensorRow::kind));
}

Record read_record(std::string_view text, uint64_t weight_bytes, const archive::Origin& origin) {
  const json root = archive::parse_json(text, "record", {}, origin);
  try {
    return read_members(root, weight_bytes, origin);
  } catch (const json::exception& error) {
    origin.broken("the record cannot be read: {}; export the module again", error.what());
  }
}

}  // namespace accelerate::nn::compiled
