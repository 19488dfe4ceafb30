// SPDX-License-Identifier: Apache-2.0
// Content of folders of torch.distributed.checkpoint: .metadata and items.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/archive/pickle.hpp"
#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/archive/zip.hpp"

namespace dcp_files {

using namespace accelerate::archive;
using Sizes = std::vector<int64_t>;

inline PickleValue text(std::string words) { return PickleValue(std::move(words)); }
inline PickleValue tuple(PickleItems items) { return PickleTuple{std::make_shared<PickleItems>(std::move(items))}; }
inline PickleValue list(PickleItems items) { return PickleList{std::make_shared<PickleItems>(std::move(items))}; }
inline PickleValue dict(PickleEntries entries) {
  return PickleDict{std::make_shared<PickleEntries>(std::move(entries))};
}
inline PickleValue object(std::string module, std::string name, PickleItems arguments, PickleValue state) {
  auto parts = std::make_shared<PickleObject::Parts>();
  parts->global = {std::move(module), std::move(name)};
  parts->arguments = std::move(arguments);
  parts->state = std::move(state);
  return PickleObject{std::move(parts)};
}
inline PickleValue of_metadata(std::string name, PickleValue state) {
  return object("torch.distributed.checkpoint.metadata", std::move(name), {}, std::move(state));
}

inline PickleValue size(const Sizes& sizes) {
  return object("torch", "Size", {tuple(PickleItems(sizes.begin(), sizes.end()))}, PickleNone{});
}
inline PickleValue chunk(const Sizes& offsets, const Sizes& sizes) {
  return of_metadata("ChunkStorageMetadata", dict({{text("offsets"), size(offsets)}, {text("sizes"), size(sizes)}}));
}
inline PickleValue memory_format() {
  return object("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", {int64_t{0}}, {});
}
/// The same as Python 3.11.2 writes it.
inline PickleValue memory_format_by_name() {
  return object(
      "builtins", "getattr",
      {PickleGlobal{"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"}, text("TORCH_CONTIGUOUS_FORMAT")},
      {});
}
inline PickleValue properties(PickleValue dtype, PickleValue format) {
  return of_metadata("TensorProperties",
                     tuple({std::move(dtype), object("torch.serialization", "_get_layout", {text("torch.strided")}, {}),
                            false, std::move(format), false}));
}
inline PickleValue tensor(const Sizes& sizes, PickleItems chunks, PickleValue dtype = PickleGlobal{"torch", "float32"},
                          PickleValue format = memory_format()) {
  return of_metadata("TensorStorageMetadata",
                     dict({{text("properties"), properties(std::move(dtype), std::move(format))},
                           {text("size"), size(sizes)},
                           {text("chunks"), list(std::move(chunks))}}));
}
inline PickleValue bytes() { return of_metadata("BytesStorageMetadata", dict({})); }

inline PickleValue index(std::string name, PickleValue offset) {
  return of_metadata(
      "MetadataIndex",
      dict({{text("fqn"), text(std::move(name))}, {text("index"), int64_t{0}}, {text("offset"), std::move(offset)}}));
}
inline PickleValue storage(PickleEntries members) {
  return object("torch.distributed.checkpoint.filesystem", "_StorageInfo", {}, dict(std::move(members)));
}
inline PickleValue storage(std::string file, int64_t offset, int64_t length) {
  return storage({{text("relative_path"), text(std::move(file))}, {text("offset"), offset}, {text("length"), length}});
}

/// The items of a folder, written one after another as DCP does.
class Builder {
 public:
  PickleEntries tensors{}, items{}, paths{};

  void add(const std::string& name, const PickleValue& value) { tensors.emplace_back(text(name), value); }
  /// Adds a chunk's item: a float32 tensor with these values.
  void add_item(const std::string& name, const Sizes& offsets, const Sizes& sizes, const std::vector<float>& values,
                const std::string& file = "__0_0.distcp") {
    add_bytes(index(name, size(offsets)), torch_file(saved_tensor(sizes, row_major(sizes), values.size()), values),
              file);
  }
  void add_value(const std::string& name, const PickleValue& value, const std::string& file = "__0_0.distcp") {
    add(name, bytes());
    add_bytes(index(name, PickleNone{}), torch_file(value, {}), file);
  }
  void add_bytes(const PickleValue& key, const std::string& content, const std::string& file = "__0_0.distcp") {
    std::string& whole = find_file(file);
    items.emplace_back(key, storage(file, static_cast<int64_t>(whole.size()), static_cast<int64_t>(content.size())));
    whole += content;
  }
  void add_path(const std::string& name, const std::vector<std::string>& keys) {
    PickleItems path;
    for (const std::string& key : keys) path.push_back(text(key));
    paths.emplace_back(text(name), tuple(std::move(path)));
  }

  [[nodiscard]] std::string metadata() const {
    return pickle(of_metadata("Metadata", dict({{text("state_dict_metadata"), dict(tensors)},
                                                {text("planner_data"), dict(paths)},
                                                {text("storage_data"), dict(items)}})));
  }
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / ".metadata", std::ios::binary) << metadata();
    for (const auto& [name, content] : files_) std::ofstream(folder / name, std::ios::binary) << content;
  }

  static Sizes row_major(const Sizes& sizes) {
    Sizes strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
    return strides;
  }
  static PickleValue saved_tensor(const Sizes& sizes, const Sizes& strides, size_t elements,
                                  const std::string& type = "FloatStorage") {
    const PicklePersistent storage{std::make_shared<PickleItems>(PickleItems{
        text("storage"), PickleGlobal{"torch", type}, text("0"), text("cpu"), static_cast<int64_t>(elements)})};
    return object("torch._utils", "_rebuild_tensor_v2",
                  {storage, int64_t{0}, tuple(PickleItems(sizes.begin(), sizes.end())),
                   tuple(PickleItems(strides.begin(), strides.end())), false, PickleNone{}},
                  PickleNone{});
  }
  static std::string torch_file(const PickleValue& value, const std::vector<float>& values) {
    std::string data(values.size() * sizeof(float), '\0');
    if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
    StringSink sink;
    ZipWriter zip(sink);
    zip.add("archive/data.pkl", pickle(value));
    zip.add("archive/data/0", data);
    zip.finish();
    return sink.text();
  }

 private:
  std::string& find_file(const std::string& name) {
    for (auto& [known, content] : files_) {
      if (known == name) return content;
    }
    return files_.emplace_back(name, "").second;
  }
  std::vector<std::pair<std::string, std::string>> files_{};
};

}  // namespace dcp_files
