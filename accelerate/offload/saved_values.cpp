// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/saved_values.hpp"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <unordered_map>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/deferred/deferred_tensor.hpp"

namespace accelerate::offload {

NamesOfTensors names_of_tensors(const torch::nn::Module& module) {
  NamesOfTensors names;
  std::unordered_map<const void*, std::string> first;
  for (const auto& list : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& tensor : list) {
      if (!tensor.value().defined()) continue;
      const auto entry = first.try_emplace(tensor.value().unsafeGetTensorImpl(), tensor.key()).first;
      names[entry->second].push_back(tensor.key());
    }
  }
  return names;
}

SavedValues::SavedValues(const std::filesystem::path& path, std::string_view operation)
    : path_(path), operation_(operation) {
  if (has_safetensors(path)) {
    files_ = open_safetensors(path, operation);
    return;
  }
  for (auto& [name, tensor] : checkpoint::read_weights(path, operation)) tensors_.emplace(name, std::move(tensor));
}

void SavedValues::ensure_files(const std::filesystem::path& folder) {
  if (tensors_.empty()) return;
  const std::filesystem::path file = folder / "model.safetensors";
  checkpoint::save_file(file, {tensors_.begin(), tensors_.end()}, operation_);
  tensors_.clear();
  files_ = open_safetensors(file, operation_);
}

std::optional<WeightSource> SavedValues::find(const std::vector<std::string>& names, at::IntArrayRef expected) const {
  for (const std::string& name : names) {
    WeightSource source;
    at::IntArrayRef sizes;
    const auto file = files_.find(name);
    const auto read = tensors_.find(name);
    if (file != files_.end()) {
      source = {.file = file->second.file, .begin = file->second.begin, .dtype = file->second.dtype};
      sizes = file->second.sizes;
    } else if (read != tensors_.end()) {
      source = {.tensor = read->second.contiguous()};
      sizes = read->second.sizes();
    } else {
      continue;
    }
    if (sizes != expected) {
      base::fail(ErrorKind::data, {}, operation_, "{} of {} is [{}], the model has [{}]; build the model as saved",
                 name, path_.string(), fmt::join(sizes, ", "), fmt::join(expected, ", "));
    }
    return source;
  }
  return std::nullopt;
}

std::optional<WeightSource> SavedValues::source_of(const TensorItem& item, const NamesOfTensors& names) const {
  const auto& all = names.at(item.name);
  auto source = find(all, item.tensor.sizes());
  if (source || item.is_buffer) return source;
  base::fail(ErrorKind::data, {}, operation_, "{} lacks the parameter {}", path_.string(), fmt::join(all, " or "));
}

std::vector<std::string> SavedValues::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : files_) names.push_back(name);
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

WeightSource values_on_cpu(const at::Tensor& tensor) {
  deferred::materialize_tensor(tensor);
  return {.tensor = tensor.detach().cpu().contiguous()};
}

at::Tensor read_source(const WeightSource& source, at::IntArrayRef sizes, c10::ScalarType dtype) {
  at::Tensor values = at::empty(sizes, at::TensorOptions().dtype(dtype));
  if (values.nbytes() > 0) read_values(source, dtype, values.mutable_data_ptr(), values.nbytes());
  return values;
}

}  // namespace accelerate::offload
