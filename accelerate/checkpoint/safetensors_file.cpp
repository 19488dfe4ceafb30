// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/safetensors_file.hpp"

#include <tuple>
#include <unordered_map>

#include "accelerate/checkpoint/mapped_tensor.hpp"

namespace accelerate::checkpoint {
namespace {

const std::map<std::string, std::string> kWrittenByTorch{{"format", "pt"}};

archive::SafetensorsEntry entry_of(const std::string& name, const at::Tensor& tensor, std::string_view operation) {
  const auto names = names_of(tensor.scalar_type());
  if (!names || !archive::safetensors_bits(names->safetensors)) {
    base::fail(ErrorKind::usage, {}, operation, "{} is of dtype {}, which safetensors lacks", name,
               c10::toString(tensor.scalar_type()));
  }
  archive::SafetensorsEntry entry{.name = name, .dtype = std::string(names->safetensors)};
  for (const int64_t size : tensor.sizes()) entry.shape.push_back(static_cast<uint64_t>(size));
  return entry;
}

struct Layout {
  std::string header{};
  NamedTensors tensors{};  // in the order of their bytes
};

Layout layout_of(const NamedTensors& tensors, std::string_view operation) {
  auto left_out = tied(tensors);
  auto metadata = kWrittenByTorch;
  // A tied tensor with the name of a metadata key is written itself.
  for (const auto& [name, value] : metadata) left_out.erase(name);
  metadata.insert(left_out.begin(), left_out.end());
  std::vector<archive::SafetensorsEntry> entries;
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    if (left_out.contains(name)) continue;
    if (!tensor.defined() || tensor.layout() != c10::kStrided) std::ignore = as_written(tensor, name, operation);
    entries.push_back(entry_of(name, tensor, operation));
    by_name[name] = &tensor;
  }
  Layout layout{.header = write_safetensors(entries, metadata, operation)};
  for (const auto& entry : entries) layout.tensors.emplace_back(entry.name, *by_name.at(entry.name));
  return layout;
}

}  // namespace

std::map<std::string, std::string> tied(const NamedTensors& tensors) {
  std::map<std::string, std::string> found;
  std::unordered_map<const void*, size_t> first;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    const void* const memory = data_address(tensor);
    if (memory == nullptr) continue;
    const auto [place, is_first] = first.try_emplace(memory, i);
    if (!is_first && same_memory(tensor, tensors[place->second].second)) found[name] = tensors[place->second].first;
  }
  return found;
}

void write_safetensors_file(archive::Sink& sink, const NamedTensors& tensors, std::string_view operation,
                            const ProvideValues& provide) {
  const Layout layout = layout_of(tensors, operation);
  sink.write(layout.header);
  for (const auto& [name, tensor] : layout.tensors) {
    const at::Tensor written = as_written(tensor.is_meta() ? provide(tensor) : tensor, name, operation);
    sink.write(tensor_bytes(written));
  }
}

std::vector<at::Tensor> placeholders_in_safetensors_order(const NamedTensors& tensors, std::string_view operation) {
  std::vector<at::Tensor> placeholders;
  for (const auto& [name, tensor] : layout_of(tensors, operation).tensors) {
    if (tensor.is_meta()) placeholders.push_back(tensor);
  }
  return placeholders;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, std::string_view operation)
    : file_(std::make_shared<archive::MappedFile>(path, operation)),
      origin_{.path = path.string(), .operation = std::string(operation)},
      header_(archive::read_safetensors(file_->text(), origin_)) {}

NamedTensors SafetensorsFile::tensors() const {
  NamedTensors list;
  std::unordered_map<std::string_view, at::Tensor> by_name;
  for (const auto& entry : header_.tensors) {
    const auto dtype = dtype_of_safetensors(entry.dtype);
    if (!dtype) origin_.broken("tensor {} is of dtype {}, which LibTorch lacks", entry.name, entry.dtype);
    const std::vector<int64_t> sizes(entry.shape.begin(), entry.shape.end());
    list.emplace_back(entry.name, mapped_tensor(file_, header_.data_begin + entry.begin, sizes, *dtype));
    by_name[entry.name] = list.back().second;
  }
  for (const auto& [name, of] : header_.metadata) {
    if (kWrittenByTorch.contains(name)) continue;
    const auto found = by_name.find(of);
    if (found != by_name.end() && !by_name.contains(name)) list.emplace_back(name, found->second);
  }
  return list;
}

}  // namespace accelerate::checkpoint
