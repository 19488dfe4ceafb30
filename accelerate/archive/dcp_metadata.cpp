// SPDX-License-Identifier: Apache-2.0
// The classes are those of torch/distributed/checkpoint/metadata.py and filesystem.py.
#include "accelerate/archive/dcp_metadata.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "accelerate/archive/members.hpp"
#include "accelerate/archive/rebuilt_tensor.hpp"
#include "accelerate/archive/unpickle.hpp"

namespace accelerate::archive {
namespace {

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr std::string_view kTensor = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
constexpr std::string_view kBytes = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";
constexpr std::string_view kChunk = "torch.distributed.checkpoint.metadata.ChunkStorageMetadata";
constexpr std::string_view kProperties = "torch.distributed.checkpoint.metadata.TensorProperties";
constexpr std::string_view kIndex = "torch.distributed.checkpoint.metadata.MetadataIndex";
constexpr std::string_view kStorage = "torch.distributed.checkpoint.filesystem._StorageInfo";

constexpr size_t kMaxDcpDimensions = 64;

// Dtypes that torch.save names by their storage types.
constexpr std::array<TorchType, 12> kNamedDtypes{{{"torch.float32", "F32", 32},
                                                  {"torch.float64", "F64", 64},
                                                  {"torch.float16", "F16", 16},
                                                  {"torch.bfloat16", "BF16", 16},
                                                  {"torch.int64", "I64", 64},
                                                  {"torch.int32", "I32", 32},
                                                  {"torch.int16", "I16", 16},
                                                  {"torch.int8", "I8", 8},
                                                  {"torch.uint8", "U8", 8},
                                                  {"torch.bool", "BOOL", 8},
                                                  {"torch.complex64", "C64", 64},
                                                  {"torch.complex128", "C128", 128}}};

const AllowedGlobals& allowed_in_dcp_metadata() {
  static const AllowedGlobals names = [] {
    // Python 3.11.2, which Debian 12 has, writes an enumerator as getattr(class, name), which is not executed.
    AllowedGlobals all = {"builtins.getattr",
                          "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
                          "torch.distributed.checkpoint.metadata.StorageMeta",
                          "torch.serialization._get_layout",
                          "torch.Size",
                          "torch.uint16",
                          "torch.uint32",
                          "torch.uint64",
                          "torch.float8_e4m3fn",
                          "torch.float8_e5m2",
                          "torch.float8_e8m0fnu",
                          "collections.OrderedDict",
                          "pathlib.PosixPath",
                          "pathlib.WindowsPath",
                          "pathlib._local.PosixPath",
                          "pathlib._local.WindowsPath"};
    for (const auto name : {kMetadata, kTensor, kBytes, kChunk, kProperties, kIndex, kStorage}) {
      all.insert(std::string(name));
    }
    for (const TorchType& type : kNamedDtypes) all.insert(std::string(type.global));
    return all;
  }();
  return names;
}

const PickleObject::Parts* object_of(const PickleValue& value, std::string_view global) {
  const auto* object = value.as<PickleObject>();
  return object != nullptr && object->parts->global.str() == global ? object->parts.get() : nullptr;
}

class MetadataParser {
 public:
  MetadataParser(std::string_view pickle, const Origin& origin)
      : origin_(origin), root_(unpickle(pickle, allowed_in_dcp_metadata(), origin)) {}

  DcpMetadata run() {
    const auto* metadata = object_of(root_, kMetadata);
    if (metadata == nullptr) origin_.broken("it holds {}, expected a {}", root_.kind(), kMetadata);
    const Members members(metadata->state, "the metadata", origin_);
    add_items(entries_in(members, "storage_data"));
    if (members.has("planner_data")) add_paths(members.value("planner_data"));
    DcpMetadata result;
    for (const auto& [key, value] : entries_in(members, "state_dict_metadata")) {
      const std::string name = name_in(key, "state_dict_metadata");
      if (object_of(value, kBytes) != nullptr) {
        result.values.push_back({.name = name, .path = path_of(name), .item = item_of(name, nullptr)});
      } else if (const auto* tensor = object_of(value, kTensor)) {
        result.tensors.push_back(tensor_of(name, tensor->state));
      } else {
        origin_.broken("{} is {}, expected a tensor or bytes", quote_for_terminal(name), value.kind());
      }
    }
    return result;
  }

 private:
  const PickleEntries& entries_in(const Members& members, std::string_view key) const {
    const PickleEntries* entries = entries_of(members.value(key));
    if (entries == nullptr) members.wrong(key, members.value(key), "a dict");
    return *entries;
  }

  std::string name_in(const PickleValue& key, std::string_view where) const {
    const auto* name = key.as<std::string>();
    if (name == nullptr) origin_.broken("a name in {} is {}, expected a text", where, key.kind());
    return *name;
  }

  // "storage_data" maps the name of an item, and the offsets of a tensor's chunk, to its place.
  void add_items(const PickleEntries& entries) {
    for (const auto& [key, value] : entries) {
      const auto* index = object_of(key, kIndex);
      const auto* info = object_of(value, kStorage);
      if (index == nullptr || info == nullptr) {
        origin_.broken("'storage_data' maps {} to {}, expected a MetadataIndex and a _StorageInfo", key.kind(),
                       value.kind());
      }
      const Members of(index->state, "a MetadataIndex", origin_);
      const std::string& name = of.text("fqn");
      const bool has_offset = of.has("offset") && of.value("offset").as<PickleNone>() == nullptr;
      std::optional<std::vector<uint64_t>> offsets;
      if (has_offset) offsets = sizes_in(of.value("offset"), name);
      if (!items_.emplace(key_of(name, offsets ? &*offsets : nullptr), item_in(name, info->state)).second) {
        origin_.broken("{} is in 'storage_data' twice", quote_for_terminal(name));
      }
    }
    check_items_are_apart();
  }

  // A few bytes that are used as many items could fill all memory.
  void check_items_are_apart() const {
    std::vector<const std::pair<const std::string, DcpItem>*> all;
    for (const auto& item : items_) all.push_back(&item);
    std::sort(all.begin(), all.end(), [](const auto* a, const auto* b) {
      return std::tie(a->second.file, a->second.begin, a->second.size) <
             std::tie(b->second.file, b->second.begin, b->second.size);
    });
    for (size_t i = 1; i < all.size(); ++i) {
      const auto& [before, after] = std::tie(all[i - 1]->second, all[i]->second);
      if (before.file != after.file || before.size <= after.begin - before.begin) continue;
      const auto name = [](const auto* item) {
        return quote_for_terminal(item->first.substr(0, item->first.find('\0')));
      };
      origin_.broken("the items of {} and {} share bytes of {}", name(all[i - 1]), name(all[i]), before.file);
    }
  }

  DcpItem item_in(const std::string& name, const PickleValue& state) const {
    const Members of(state, fmt::format("the item of {}", quote_for_terminal(name)), origin_);
    if (of.has("transform_descriptors") && of.value("transform_descriptors").as<PickleNone>() == nullptr &&
        !of.items("transform_descriptors").empty()) {
      origin_.broken("{} is transformed (compressed), which is not read; save it without stream transforms",
                     of.where());
    }
    DcpItem item{.file = of.text("relative_path"), .begin = of.natural("offset"), .size = of.natural("length")};
    const bool is_file_name = !item.file.empty() && item.file != "." && item.file != ".." &&
                              item.file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!is_file_name) {
      origin_.broken("{} is in {}, expected a file name in the same folder", of.where(), quote_for_terminal(item.file));
    }
    return item;
  }

  // The default planner keeps the keys that it joined with dots.
  void add_paths(const PickleValue& planner_data) {
    const PickleEntries* entries = entries_of(planner_data);
    if (entries == nullptr) return;  // another planner
    for (const auto& [key, value] : *entries) {
      const std::string name = name_in(key, "planner_data");
      const PickleItems* items = items_in(value);
      if (items == nullptr || items->empty()) {
        origin_.broken("the path of {} is {}, expected a tuple of keys", quote_for_terminal(name), value.kind());
      }
      std::vector<std::string>& path = paths_[name];
      for (const PickleValue& item : *items) {
        const auto* number = item.as<int64_t>();
        path.push_back(number != nullptr ? std::to_string(*number) : name_in(item, "planner_data"));
      }
    }
  }
  std::vector<std::string> path_of(const std::string& name) const {
    const auto found = paths_.find(name);
    return found == paths_.end() ? std::vector<std::string>{name} : found->second;
  }

  static std::string key_of(const std::string& name, const std::vector<uint64_t>* offsets) {
    std::string key = name;
    if (offsets == nullptr) return key;
    key += '\0';
    for (const uint64_t offset : *offsets) key += std::to_string(offset) + ",";
    return key;
  }
  DcpItem item_of(const std::string& name, const std::vector<uint64_t>* offsets) const {
    const auto found = items_.find(key_of(name, offsets));
    if (found == items_.end()) {
      origin_.broken("'storage_data' has no item of {}{}", quote_for_terminal(name),
                     offsets == nullptr ? "" : fmt::format(" at {}", listed(*offsets)));
    }
    return found->second;
  }
  static std::string listed(const std::vector<uint64_t>& numbers) {
    std::string list;
    for (const uint64_t number : numbers) list += (list.empty() ? "" : ", ") + std::to_string(number);
    return "[" + list + "]";
  }

  // A torch.Size is a call with one tuple.
  std::vector<uint64_t> sizes_in(const PickleValue& value, const std::string& name) const {
    const PickleItems* call = arguments_of(value, "torch.Size");
    const PickleItems* items = items_in(call != nullptr && call->size() == 1 ? call->front() : value);
    if (items == nullptr) {
      origin_.broken("{} has {} as size, expected a torch.Size", quote_for_terminal(name), value.kind());
    }
    if (items->size() > kMaxDcpDimensions) {
      origin_.broken("{} has {} dimensions, expected at most {}", quote_for_terminal(name), items->size(),
                     kMaxDcpDimensions);
    }
    std::vector<uint64_t> sizes;
    for (const PickleValue& item : *items) {
      const auto* number = item.as<int64_t>();
      if (number == nullptr || *number < 0) {
        origin_.broken("{} has {} as a size, expected an integer from 0", quote_for_terminal(name),
                       number == nullptr ? std::string(item.kind()) : std::to_string(*number));
      }
      sizes.push_back(static_cast<uint64_t>(*number));
    }
    return sizes;
  }

  // The bytes are counted as well, so that later products cannot overflow.
  uint64_t count(const std::vector<uint64_t>& sizes, uint64_t bits, const std::string& name) const {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
    uint64_t elements = 1, bytes = 0;
    bool fits = true;
    for (const uint64_t size : sizes) fits = fits && !__builtin_mul_overflow(elements, size, &elements);
    fits = fits && !__builtin_mul_overflow(elements, bits / 8, &bytes) && bytes <= uint64_t{INT64_MAX};
    if (!fits) origin_.broken("{} has more elements than can be counted", quote_for_terminal(name));
    return elements;
  }

  TorchType dtype_of(const PickleValue& properties, const std::string& name) const {
    const auto* object = object_of(properties, kProperties);
    const PickleItems* state = object == nullptr ? nullptr : items_in(object->state);
    if (state == nullptr || state->empty()) {
      origin_.broken("{} has {} as properties, expected TensorProperties", quote_for_terminal(name), properties.kind());
    }
    const PickleValue& dtype = state->front();
    if (const TorchType* known = torch_type_of(dtype)) return *known;
    const auto* global = dtype.as<PickleGlobal>();
    for (const TorchType& type : kNamedDtypes) {
      if (global != nullptr && global->str() == type.global) return type;
    }
    origin_.broken("{} has an unknown dtype", quote_for_terminal(name));
  }

  DcpTensor tensor_of(const std::string& name, const PickleValue& state) const {
    const Members of(state, quote_for_terminal(name), origin_);
    const TorchType type = dtype_of(of.value("properties"), name);
    DcpTensor tensor{.name = name,
                     .path = path_of(name),
                     .dtype = std::string(type.dtype),
                     .bits = type.bits,
                     .shape = sizes_in(of.value("size"), name)};
    tensor.elements = count(tensor.shape, tensor.bits, name);
    for (const PickleValue& item : of.items("chunks")) {
      const auto* chunk = object_of(item, kChunk);
      if (chunk == nullptr) of.wrong("chunks", item, "chunks");
      tensor.chunks.push_back(chunk_of(tensor, chunk->state));
    }
    return tensor;
  }

  DcpChunk chunk_of(const DcpTensor& tensor, const PickleValue& state) const {
    const Members of(state, fmt::format("a chunk of {}", quote_for_terminal(tensor.name)), origin_);
    DcpChunk chunk{.offsets = sizes_in(of.value("offsets"), tensor.name),
                   .sizes = sizes_in(of.value("sizes"), tensor.name)};
    bool fits = chunk.offsets.size() == tensor.shape.size() && chunk.sizes.size() == tensor.shape.size();
    for (size_t i = 0; fits && i < tensor.shape.size(); ++i) {
      fits = chunk.offsets[i] <= tensor.shape[i] && chunk.sizes[i] <= tensor.shape[i] - chunk.offsets[i];
    }
    if (!fits) {
      origin_.broken("{} of shape {} at {} is outside its shape {}", of.where(), listed(chunk.sizes),
                     listed(chunk.offsets), listed(tensor.shape));
    }
    chunk.elements = count(chunk.sizes, tensor.bits, tensor.name);
    if (chunk.elements > 0) chunk.item = item_of(tensor.name, &chunk.offsets);
    return chunk;
  }

  const Origin& origin_;
  PickleValue root_;
  std::unordered_map<std::string, DcpItem> items_;  // by key_of()
  std::unordered_map<std::string, std::vector<std::string>> paths_;
};

}  // namespace

DcpMetadata read_dcp_metadata(std::string_view pickle, const Origin& origin) {
  return MetadataParser(pickle, origin).run();
}

}  // namespace accelerate::archive
